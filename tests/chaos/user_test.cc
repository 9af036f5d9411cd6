// What a careless user does with the real command: each mistake is one clear message before the
// first step, and what can go on goes on to the same bits.
#include <atomic>
#include <cmath>
#include <thread>

#include "support/command.h"
#include "support/sockets.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class User : public testing::Test {
 protected:
  /// Runs `arguments`, which must be refused and leave no run; returns what it said on stderr.
  std::string refused(const Arguments& arguments) {
    Command command(arguments + Arguments{"--out", run_});
    EXPECT_NE(command.wait(), 0) << command.out();
    EXPECT_FALSE(std::filesystem::exists(run_)) << command.err();
    return command.err();
  }
  static bool says(const std::string& text, const std::string& what) {
    return text.find(what) != std::string::npos;
  }

  TempFolder folder_;
  const std::string run_ = folder_ / "run";
};

TEST_F(User, ALossThatTheTargetsDoNotSuitIsRefused) {
  for (const std::string loss : {"mse", "bce"}) {
    const std::string said = refused(Arguments{"train", "mlp-points"} + set({"loss.kind=" + loss}));
    EXPECT_TRUE(says(
        said, "loss.kind = \"" + loss + "\" but data.kind = \"points\": its targets are classes"))
        << said;
  }
}

TEST_F(User, WeightsThatAreAllZeroAreRefused) {
  const std::string said =
      refused(Arguments{"train", "mlp-points"} + set({"loss.class_weights=[0,0,0,0,0,0,0,0]"}));
  EXPECT_TRUE(says(said, "loss.class_weights are all 0")) << said;
}

TEST_F(User, ANameThatIsNoFolderIsRefused) {
  for (const std::string name : {"a/b", "../a", "a\\u0000b"}) {
    const std::string job =
        folder_.write("job.toml", "base = \"mlp-points\"\nname = \"" + name + "\"\n");
    const std::string said = refused({"train", job});
    EXPECT_TRUE(says(said, "no slashes and no control characters")) << said;
  }
}

TEST_F(User, AJobFileWhoseNameIsNoUtf8TrainsAndIsResumed) {
  const std::string job = folder_.write("caf\xe9.toml", "base = \"mlp-points\"\n");
  Command command({"train", job, "--ranks", "2", "--steps", "2", "--out", run_});
  ASSERT_EQ(command.wait(), 0) << command.err();
  EXPECT_TRUE(command.says("caf_")) << command.out();
  Command again({"train", "--resume", run_, "--steps", "2"});
  ASSERT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(again.hash(), command.hash());
}

TEST_F(User, ARunThatFailsBeforeItsFirstStepLeavesNoFolderAboveIt) {
  Command command(Arguments{"train", "gpt-kjv", "--ranks", "1", "--out", folder_ / "a/b/c"} +
                  set({"data.path=/no/such/file"}));
  EXPECT_EQ(command.wait(), 1) << command.out();
  EXPECT_TRUE(command.says("/no/such/file")) << command.err();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << command.err();
}

TEST_F(User, ASampleOfAWalkThatHasNoBytesIsRefused) {
  const std::string said =
      refused(Arguments{"train", "gpt-kjv"} + set({"data.kind=walk", "model.vocab=7"}));
  EXPECT_TRUE(says(said, "model.vocab = 7: a prompt is bytes, which need 256")) << said;
}

TEST_F(User, TwoClassesServeAsYesAndNo) {
  std::string table = "age,city,buys\n";
  for (int i = 0; i < 40; ++i)
    table += fmt::format("{},{},{}\n", i, i % 3 == 0 ? "Rome" : "Oslo", i % 2 ? "no" : "yes");
  const std::string path = folder_.write("people.csv", table);
  const std::string job = folder_.write("job.toml", R"(
[model]
kind = "wide-deep"
hidden = [8]
[data]
kind = "csv"
held_out = 0.2
columns = ["age: number standardise", "city: category Rome|Oslo", "buys: target no|yes"]
[train]
lanes = 2
micro_batch_size = 4
steps = 2
)");
  Command command(Arguments{"train", job, "--ranks", "1", "--out", run_} +
                  set({"data.path=" + path}));
  EXPECT_EQ(command.wait(), 0) << command.err();
  EXPECT_TRUE(command.says("auc")) << command.out();
}

/// A .npy file of `columns` floats per record.
std::string npy(const std::vector<float>& values, size_t columns) {
  const std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}\n",
                  values.size() / columns, columns);
  std::string bytes = "\x93NUMPY";
  bytes += {'\1', '\0', static_cast<char>(header.size()), '\0'};
  return bytes + header +
         std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

TEST_F(User, ARecordOfAnArrayThatCannotBeUsedIsNamedOrSkipped) {
  std::vector<float> features(40 * 2, 0.5F), labels(40, 1);
  features[7 * 2 + 1] = std::nanf("");
  labels[9] = 2;
  const std::string x = folder_.write("x.npy", npy(features, 2)),
                    y = folder_.write("y.npy", npy(labels, 1));
  const Arguments train = Arguments{"train", "mlp-points", "--ranks", "2", "--steps", "2"} +
                          set({"data.kind=numpy", "data.path=" + x, "data.labels=" + y,
                               "data.held_out=0.3", "model.inputs=2", "model.classes=2"});
  const std::string said = refused(train);
  EXPECT_TRUE(says(said, x + ": value 1 of record 7 is nan")) << said;
  Command command(train + Arguments{"--out", run_} + set({"data.bad=skip"}));
  EXPECT_EQ(command.wait(), 0) << command.err();
  EXPECT_TRUE(command.says("2 skipped")) << command.out();
  EXPECT_TRUE(command.says(y + ": the class of record 9 is 2, outside of model.classes = 2"))
      << command.out();
}

TEST_F(User, AFolderWithoutAnImageThatCanBeUsedIsRefusedEvenWhereTheyAreSkipped) {
  for (const char* name : {"cat", "dog"})
    std::filesystem::create_directories(folder_ / "images" + "/" + name);
  const std::string bad = folder_.write("images/cat/a.png", "no image");
  const std::string said =
      refused(Arguments{"train", "mlp-points"} +
              set({"data.kind=images", "data.path=" + (folder_ / "images"), "data.bad=skip",
                   "model.image=[1,4,4]", "model.classes=2"}));
  EXPECT_TRUE(
      says(said, "no image can be used; the first fault: " + bad + ": neither PNG nor JPEG"))
      << said;
}

TEST_F(User, ARunThatWasEndedEarlyHasNothingLeftToDo) {
  const std::string job = folder_.write("job.toml", R"(
base = "mlp-points"
[train]
steps = 100
lr = 0.0
eval_every = 3
early_stop = 2
)");
  Command first({"train", job, "--ranks", "2", "--out", run_});
  ASSERT_EQ(first.wait(), 0) << first.err();
  ASSERT_TRUE(std::filesystem::exists(run_ + "/checkpoints/step-00000009")) << first.out();
  Command again({"train", "--resume", run_, "--ranks", "1"});
  ASSERT_EQ(again.wait(), 0) << again.err();
  EXPECT_TRUE(again.says("it stopped early at step 9: there is nothing left to do")) << again.out();
  EXPECT_EQ(again.hash(), first.hash());
}

TEST_F(User, StrangersAtAFixedPortChangeNothing) {
  const Arguments train = Arguments{"train", "mlp-points", "--ranks", "3", "--steps", "3"} +
                          set({"layout.transport=tcp"});
  const int port = free_ports(3);
  std::atomic<bool> over{false};
  // How many get in while the ranks connect is luck; TcpStrangers (ranks/net_strangers_test.cc)
  // plays one by hand.
  std::thread stranger([&] {
    for (int n = 0; !over; ++n) {
      const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address = loopback(port + n % 3);
      (void)!::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    }
  });
  Command command(train + Arguments{"--out", run_} + set({"layout.port=" + std::to_string(port)}));
  EXPECT_EQ(command.wait(), 0) << command.err();
  over = true;
  stranger.join();
  Command alone(train + Arguments{"--out", folder_ / "alone"});
  EXPECT_EQ(alone.wait(), 0) << alone.err();
  EXPECT_EQ(command.hash(), alone.hash());
}

}  // namespace
}  // namespace tutti
