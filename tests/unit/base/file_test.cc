#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
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
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tutti-file-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string path(const std::string& name) const { return folder + "/" + name; }
  size_t files() const {
    return std::distance(std::filesystem::directory_iterator(folder),
                         std::filesystem::directory_iterator());
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

TEST_F(Files, APathIsAFileAFolderSomethingElseOrNothing) {
  write_file_atomic(path("file"), "");
  std::filesystem::create_symlink("file", path("link"));
  std::filesystem::create_symlink("nowhere", path("dangling"));
  EXPECT_EQ(kind_at(path("file")), PathKind::kFile);
  EXPECT_EQ(kind_at(path("link")), PathKind::kFile);
  EXPECT_EQ(kind_at(folder), PathKind::kFolder);
  EXPECT_EQ(kind_at("/dev/null"), PathKind::kOther);
  for (const std::string& nothing :
       {path("none"), path("dangling"), path("file/below"), std::string()})
    EXPECT_EQ(kind_at(nothing), PathKind::kNothing) << nothing;
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"dangling", "file", "link"}));
}

TEST_F(Files, WhatCannotBeLookedAtIsNamedWithTheReason) {
  const std::string longest = path(std::string(300, 'x'));
  EXPECT_EQ(message_of([&] { path_exists(longest); }),
            "cannot look at " + longest + ": File name too long");
  std::filesystem::create_symlink("circle", path("circle"));
  EXPECT_EQ(message_of([&] { is_file(path("circle")); }),
            "cannot look at " + path("circle") + ": Too many levels of symbolic links");
  EXPECT_EQ(message_of([&] { names_in(path("none")); }),
            "cannot read " + path("none") + ": No such file or directory");
}

TEST_F(Files, AFileWithoutASizeIsReadToItsEnd) {
  EXPECT_GT(read_file("/proc/self/status").size(), 100u);
}

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
  EXPECT_NE(message_of([&] { write_file_atomic(path("taken"), "new"); }).find("rename onto"),
            std::string::npos);
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
  EXPECT_EQ(message_of([&] {
              write_all(full.get(), std::as_bytes(std::span(text.data(), 1)), "/dev/full");
            }),
            "cannot write /dev/full: No space left on device");
  EXPECT_EQ(message_of([&] {
              open_event_file("/dev/full")->write({{"a", 1}});
            }),
            "cannot write /dev/full: No space left on device");
}

TEST_F(Files, AnEndlessFileIsRefused) {
  EXPECT_EQ(message_of([&] { read_file("/dev/zero"); }), "/dev/zero: a device, not a file");
  EXPECT_EQ(special_kind(S_IFREG), "");
  EXPECT_EQ(special_kind(S_IFIFO), "a pipe");
}

TEST_F(Files, AnOutputIsWrittenAsAFile) {
  write_output(path("new"), "one");
  EXPECT_EQ(read_file(path("new")), "one");
  write_output(path("new"), "two");
  EXPECT_EQ(read_file(path("new")), "two");
  EXPECT_EQ(files(), 1u);
}

TEST_F(Files, AnOutputFollowsLinksAndKeepsModeAndOwner) {
  write_file_atomic(path("kept"), "old");
  ASSERT_EQ(chmod(path("kept").c_str(), 0640), 0);
  std::filesystem::create_directory(path("below"));
  std::filesystem::create_symlink("../kept", path("below/link"));
  std::filesystem::create_symlink("below/link", path("link"));
  write_output(path("link"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(path("below/link")));
  EXPECT_EQ(read_file(path("kept")), "new");
  struct stat info {};
  ASSERT_EQ(stat(path("kept").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);

  std::filesystem::create_symlink("not yet", path("ahead"));
  write_output(path("ahead"), "made");
  EXPECT_TRUE(std::filesystem::is_symlink(path("ahead")));
  EXPECT_EQ(read_file(path("not yet")), "made");

  std::filesystem::create_symlink("circle", path("circle"));
  EXPECT_EQ(message_of([&] { write_output(path("circle"), "x"); }),
            "cannot write " + path("circle") + ": Too many levels of symbolic links");
}

TEST_F(Files, AnOutputWithOtherNamesStaysOneFile) {
  write_file_atomic(path("a"), "the old and longer text");
  std::filesystem::create_hard_link(path("a"), path("b"));
  write_output(path("a"), "new");
  EXPECT_EQ(read_file(path("b")), "new");
}

TEST_F(Files, AnOutputGoesThroughWhatIsNoFile) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  Fd reader(open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  write_output(path("pipe"), "through");
  char got[8] = {};
  EXPECT_EQ(read(reader.get(), got, sizeof got), 7);
  EXPECT_STREQ(got, "through");
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));

  // By links of our own: were they replaced after all, the system would keep its devices.
  std::filesystem::create_symlink("/dev/null", path("null"));
  write_output(path("null"), "gone");
  EXPECT_TRUE(std::filesystem::is_character_file(path("null")));
  std::filesystem::create_symlink("/dev/full", path("full"));
  EXPECT_EQ(message_of([&] { write_output(path("full"), "x"); }),
            "cannot write " + path("full") + ": No space left on device");
  EXPECT_TRUE(std::filesystem::is_character_file(path("full")));
}

TEST_F(Files, AnOutputToADescriptorIsAppendedWhereThatIs) {
  write_file_atomic(path("log"), "before\n");
  Fd log(open(path("log").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  write_output("/dev/fd/" + std::to_string(log.get()), "a\n");
  write_output("/proc/self/fd/" + std::to_string(log.get()), "b\n");
  EXPECT_EQ(read_file(path("log")), "before\na\nb\n");
  EXPECT_TRUE(is_stdout("/dev/stdout") && is_stdout("/dev/fd/1"));
  EXPECT_FALSE(is_stdout("/dev/stderr") || is_stdout("/dev/fd/1x") || is_stdout("out"));
}

TEST_F(Files, AnOutputThatMayNotBeWrittenIsRefusedBeforehandToo) {
  write_file_atomic(path("mine"), "precious");
  ASSERT_EQ(chmod(path("mine").c_str(), 0444), 0);
  const auto refused = [&](const std::string& name) {
    const std::string message = message_of([&] { write_output(name, "x"); });
    EXPECT_EQ(message, message_of([&] { refuse_bad_output(name); }));
    return message;
  };
  EXPECT_EQ(refused(path("mine")), "cannot write " + path("mine") +
                                       ": it is read-only; `chmod u+w` it, or name another file");
  EXPECT_EQ(read_file(path("mine")), "precious");
  EXPECT_EQ(refused(folder), "cannot write " + folder + ": it is a folder");
  EXPECT_EQ(refused(path("no/x")),
            "cannot write " + path("no/x") + ": there is no folder " + path("no"));
  EXPECT_EQ(refused(path("mine/x")), "cannot write " + path("mine/x") + ": Not a directory");
  EXPECT_EQ(refused(""), "the output needs a file's name, not an empty one");
  refuse_bad_output(path("fine"));
  refuse_bad_output("/dev/stdout");
  EXPECT_EQ(files(), 1u);
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
      for (int i = 0; i < 100; ++i)
        sink->write({{"thread", t}, {"i", i}, {"text", std::string(i, 'x')}});
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
