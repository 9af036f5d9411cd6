#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace tutti {

namespace {

/// A folder of its own for each test, removed at the end.
class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-file-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string path(const std::string& name) const { return folder + "/" + name; }
  size_t files() const {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  }
  std::string folder;
};

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_F(Files, WhatWasWrittenIsReadBack) {
  std::string text(100000, 'x');
  text[5] = '\0';
  write_file_atomic(path("a"), text);
  EXPECT_EQ(read_file(path("a")), text);
  write_file_atomic(path("a"), "");
  EXPECT_EQ(read_file(path("a")), "");
  EXPECT_EQ(files(), 1u);
}

TEST_F(Files, AFileWithoutASizeIsReadToItsEnd) { EXPECT_GT(read_file("/proc/self/status").size(), 100u); }

TEST_F(Files, FailuresNameThePathTheOperationAndTheReason) {
  EXPECT_EQ(message_of([&] { read_file(path("none")); }),
            "cannot open " + path("none") + ": No such file or directory");
  const std::string below = path("none/b");
  const std::string message = message_of([&] { write_file_atomic(below, "x"); });
  EXPECT_NE(message.find(below), std::string::npos) << message;
  EXPECT_NE(message.find("No such file or directory"), std::string::npos) << message;
}

TEST_F(Files, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  std::filesystem::create_directory(path("taken"));  // a rename of a file onto a folder fails
  EXPECT_NE(message_of([&] { write_file_atomic(path("taken"), "new"); }).find("rename onto"), std::string::npos);
  EXPECT_EQ(files(), 1u);
  EXPECT_TRUE(std::filesystem::is_directory(path("taken")));
}

TEST_F(Files, AReaderSeesTheOldFileOrTheNewOneNeverAMixture) {
  const std::string a(50000, 'a'), b(60000, 'b');
  write_file_atomic(path("f"), a);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 50; ++i) write_file_atomic(path("f"), i % 2 == 0 ? b : a);
    done = true;
  });
  do {
    const std::string seen = read_file(path("f"));
    EXPECT_TRUE(seen == a || seen == b) << "a mixture of " << seen.size() << " bytes";
  } while (!done);
  writer.join();
}

TEST_F(Files, AFullDiskIsAnErrorThatNamesIt) {
  Fd full(open("/dev/full", O_WRONLY));
  if (!full) GTEST_SKIP() << "no /dev/full here";
  const std::string text = "x";
  EXPECT_EQ(message_of([&] { write_all(full.get(), std::as_bytes(std::span(text.data(), 1)), "/dev/full"); }),
            "cannot write /dev/full: No space left on device");
  EXPECT_EQ(message_of([&] {
              open_event_file("/dev/full")->write({{"a", 1}});
            }),
            "cannot write /dev/full: No space left on device");
}

TEST_F(Files, AnFdClosesWhatItOwnsOnce) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  Fd reader(fds[0]);
  {
    Fd writer(fds[1]);
    Fd moved(std::move(writer));
    EXPECT_FALSE(writer);  // NOLINT(bugprone-use-after-move): that it is empty is the promise
    EXPECT_EQ(moved.get(), fds[1]);
  }
  char c;
  EXPECT_EQ(read(reader.get(), &c, 1), 0);  // the end: the writing side is closed
}

TEST_F(Files, EventsOfManyThreadsAreWholeLines) {
  auto sink = open_event_file(path("events.jsonl"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) sink->write({{"thread", t}, {"i", i}, {"text", std::string(i, 'x')}});
    });
  }
  for (auto& thread : threads) thread.join();
  std::istringstream lines(read_file(path("events.jsonl")));
  std::array<int, 4> next{};
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    EXPECT_EQ(event["i"], next.at(event["thread"].get<int>())++);
  }
  EXPECT_EQ(next, (std::array<int, 4>{100, 100, 100, 100}));
}

TEST_F(Files, AnEventFileGoesOnWhereItEnded) {
  open_event_file(path("e"))->write({{"a", 1}});
  open_event_file(path("e"))->write({{"b", "\xff"}});  // not UTF-8: still a line
  EXPECT_EQ(read_file(path("e")), "{\"a\":1}\n{\"b\":\"\xef\xbf\xbd\"}\n");
}

TEST_F(Files, AnEventFileThatCannotBeOpenedIsNamed) {
  EXPECT_EQ(message_of([&] { open_event_file(path("no/e")); }),
            "cannot open " + path("no/e") + ": No such file or directory");
}

}  // namespace tutti
