// Looking at checkpoints, comparing them and taking the parameters out of them, as a user does.
#include <fstream>

#include "state/load_checkpoint.h"
#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class CheckpointCommands : public testing::Test {
 protected:
  /// Trains a small job that saves at steps 2, 4 and 6. They are so short that they must wait.
  std::string train(const std::string& name, const Arguments& more, int steps = 6) {
    const std::string run = folder_ / name;
    Command command(
        Arguments{"train", "mlp-points", "--steps", std::to_string(steps), "--out", run} +
        set({"train.checkpoint_every=2", "layout.save_beside=false", "model.norm=batch"}) + more);
    EXPECT_EQ(command.wait(), 0) << command.err();
    hash_ = command.hash();
    return run;
  }
  /// What a command says that ends with `code`.
  std::string said(int code, const Arguments& arguments) {
    Command command(arguments);
    EXPECT_EQ(command.wait(), code) << command.out() << command.err();
    return code == 0 || command.err().empty() ? command.out() : command.err();
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  static void flip(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-3, std::ios::end);
    const auto flipped = static_cast<char>(file.peek() ^ 1);
    file.seekp(-3, std::ios::end);
    file.put(flipped);
  }

  TempFolder folder_;
  std::string hash_;
};

TEST_F(CheckpointCommands, InspectReadsAndChecksEverything) {
  const std::string run = train("run", {"--ranks", "2"});
  const std::string checkpoint = run + "/checkpoints/step-00000006";
  const std::string text = said(0, {"inspect", run});
  EXPECT_TRUE(has(text, checkpoint + "\nstep 6, data cursor ")) << text;
  EXPECT_TRUE(has(text, "state sha256 " + hash_)) << text;
  for (const char* part : {"parameters.safetensors", "m.safetensors", "v.safetensors",
                           "layers.0.norm.variance", "[64, 16]"})
    EXPECT_TRUE(has(text, part)) << part << " in\n" << text;
  EXPECT_TRUE(has(said(0, {"inspect", run + "/checkpoints/step-00000004"}), "\nstep 4, "));

  flip(checkpoint + "/v.safetensors");
  EXPECT_TRUE(
      has(said(1, {"inspect", run}), checkpoint + "/v.safetensors: damaged: elements 0 to "));
  EXPECT_TRUE(has(said(1, {"inspect", folder_ / "none"}), "no such run"));
}

TEST_F(CheckpointCommands, WhatIsSavedBesideTheStepsIsWhatIsSavedBetweenThem) {
  // Large enough that steps go on while it is copied and written.
  const Arguments job = Arguments{"train", "mlp-points", "--steps", "40"} +
                        set({"model.hidden=[700, 700]", "train.checkpoint_every=1",
                             "train.eval_every=0", "train.micro_batch_size=1"});
  Command between(job +
                  Arguments{"--out", folder_ / "between", "--set", "layout.save_beside=false"});
  EXPECT_EQ(between.wait(), 0) << between.err();
  EXPECT_TRUE(has(between.out(), "notice  steps wait while a checkpoint is written: layout."))
      << between.out();
  EXPECT_EQ(names_in(folder_ / "between/checkpoints").size(), 41u);
  for (const Arguments& layout : {Arguments{"--ranks", "1"}, Arguments{"--ranks", "2"},
                                  Arguments{"--ranks", "3", "--set", "layout.zero=3"}}) {
    const std::string beside = folder_ / fmt::format("beside {}", layout.back());
    Command command(job + layout + Arguments{"--out", beside});
    EXPECT_EQ(command.wait(), 0) << command.err();
    EXPECT_EQ(command.hash(), between.hash());
    const size_t saved = names_in(beside + "/checkpoints").size() - 1;
    EXPECT_GT(saved, 2u);
    EXPECT_EQ(said(0, {"diff", folder_ / "between", beside}),
              fmt::format("equal at all {} steps that both have saved\n", saved));
  }
}

TEST_F(CheckpointCommands, ARunKeepsAsManyAsItsJobSaysAndTellsWhatItGoesOnFrom) {
  const std::string run = train("run", {"--ranks", "2", "--set", "train.keep=2"});
  EXPECT_EQ(names_in(run + "/checkpoints"),
            (std::vector<std::string>{"latest", "step-00000004", "step-00000006"}));
  const std::string text = said(0, {"train", "--resume", run, "--steps", "8"});
  EXPECT_TRUE(has(text, "notice  goes on from step 6, the last of 2 checkpoints\n")) << text;
  EXPECT_EQ(names_in(run + "/checkpoints"),
            (std::vector<std::string>{"latest", "step-00000006", "step-00000008"}));
}

TEST_F(CheckpointCommands, TheNewestThatIsWholeIsTakenWhenItIsAskedFor) {
  const std::string run = train("run", {"--ranks", "2"}), checkpoints = run + "/checkpoints/";
  flip(checkpoints + "step-00000006/v.safetensors");
  const Arguments resume = {"train", "--resume", run, "--steps", "8"};
  EXPECT_TRUE(has(said(1, resume), "v.safetensors: damaged: elements 0 to "));
  EXPECT_TRUE(has(said(1, resume), "step-00000006, or resume with --newest-valid, to go on"));
  std::filesystem::remove(checkpoints + "step-00000006/manifest.json");
  EXPECT_TRUE(has(said(1, resume), "step-00000006: damaged: it has no manifest.json"));

  const std::string text = said(0, resume + Arguments{"--newest-valid"});
  EXPECT_TRUE(has(text, "it is now " + checkpoints + "damaged-step-00000006\n")) << text;
  EXPECT_TRUE(has(text, "notice  goes on from step 4, the last of 2 checkpoints\n")) << text;
  const std::string straight = train("straight", {"--ranks", "1"}, 8);
  EXPECT_TRUE(has(text, "state sha256 " + hash_)) << text;
  EXPECT_EQ(said(0, {"diff", run, straight}), "equal at all 4 steps that both have saved\n");

  for (const int step : {2, 4, 6, 8})
    flip(checkpoints + fmt::format("step-{:08}/parameters.safetensors", step));
  EXPECT_TRUE(has(said(1, Arguments{"train", "--resume", run, "--newest-valid"}),
                  run + ": none of its 4 checkpoints is whole; " + checkpoints + "step-00000008"));
  EXPECT_EQ(names_in(run + "/checkpoints").size(), 6u);
  EXPECT_TRUE(has(said(2, {"train", "mlp-points", "--newest-valid"}), "--resume"));
}

TEST_F(CheckpointCommands, DiffNamesTheFirstStepAndElementThatDiffer) {
  const std::string one = train("one", {"--ranks", "1"}), many = train("many", {"--ranks", "3"});
  EXPECT_EQ(said(0, {"diff", one, many}), "equal at all 3 steps that both have saved\n");

  const std::string other = folder_ / "other";
  Command begun(Arguments{"train", "mlp-points", "--steps", "6", "--out", other} +
                set({"train.checkpoint_every=2", "layout.save_beside=false", "model.norm=batch",
                     "train.seed=2"}));
  EXPECT_EQ(begun.wait(), 0) << begun.err();
  const std::string text = said(1, {"diff", one, other});
  EXPECT_TRUE(
      text.starts_with("step 2 is the first that differs: layers.0.weight (parameter): "
                       "element 0 is "))
      << text;
  EXPECT_TRUE(
      has(said(1, {"diff", one + "/checkpoints/step-00000002", one + "/checkpoints/step-00000004"}),
          "step 2 and step 4"));
  EXPECT_EQ(
      said(0, {"diff", one + "/checkpoints/step-00000002", many + "/checkpoints/step-00000002"}),
      "equal\n");

  const std::string wide = train("wide", set({"model.hidden=[64, 32]"}));
  EXPECT_TRUE(
      has(said(1, {"diff", one, wide}), "layers.1.weight (parameter) is [64, 64] and [32, 64]"));
}

TEST_F(CheckpointCommands, ExportWritesWhatAnotherRunStartsFrom) {
  const std::string run = train("run", {"--ranks", "2"}), out = folder_ / "out.safetensors";
  const std::string text = said(0, {"export", run, out});
  EXPECT_TRUE(has(text, " tensors of step 6\n")) << text;
  CheckpointReader saved(run + "/checkpoints/step-00000006");
  const auto tensors = read_tensors(out, [](const std::string&) { return true; });
  size_t parameters = 0;
  for (const SavedEntry& entry : saved.entries()) {
    if (entry.shape.slot != kParameterSlot) continue;
    ++parameters;
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const FileTensor& t) {
      return t.name == entry.shape.name;
    });
    ASSERT_NE(found, tensors.end()) << entry.shape.name;
    EXPECT_EQ(found->dims, entry.shape.dims);
    const std::span<const float> values = saved.read(entry, 0);
    EXPECT_TRUE(
        std::equal(values.begin(), values.end(), found->values.begin(), found->values.end()));
  }
  EXPECT_EQ(parameters, tensors.size());
  Command from({"train", "mlp-points", "--steps", "1", "--out", folder_ / "from", "--set",
                "model.norm=batch", "--set", "model.init_from=" + out});
  EXPECT_EQ(from.wait(), 0) << from.err();

  // What cannot be written or read leaves nothing.
  EXPECT_TRUE(has(said(1, {"export", run, folder_ / "none/out.safetensors"}), "none/"));
  flip(run + "/checkpoints/step-00000006/parameters.safetensors");
  EXPECT_TRUE(has(said(1, {"export", run, folder_ / "bad.safetensors"}), "damaged"));
  for (const std::string& name : names_in(folder_.path()))
    EXPECT_FALSE(name.starts_with("bad")) << name;
}

}  // namespace
}  // namespace tutti
