// crossval, data, generate, plot, and the test data of train, on small files.
#include <cmath>
#include <set>

#include "grid/order.h"
#include "support/small_data.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr const char* kImages = R"(
[model]
kind = "mlp"
inputs = 64
hidden = [12]
classes = 4
init = "he-normal"
[data]
kind = "numpy"
scale = "unit"
held_out = 0.2
[train]
lanes = 3
micro_batch_size = 4
steps = 8
lr = 1e-2
eval_batches = 2
)";

class TrainerCommands : public testing::Test {
 protected:
  static std::string output(const Arguments& arguments) {
    Command command(arguments);
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.out();
  }
  static std::string refused(const Arguments& arguments, int code = 1) {
    Command command(arguments);
    EXPECT_EQ(command.wait(), code) << command.out();
    return command.err();
  }
  /// An autoencoder of the same images.
  Arguments autoencoder() const {
    return set(
        {"model.kind=autoencoder", "model.latent=3", "train.steps=4", "train.micro_batch_size=6"});
  }
  TempFolder folder_;
  const std::string job_ = folder_.write("tiny.toml", kImages), run_ = folder_ / "run";
  const Arguments data_ = set(write_images(folder_, "images", 61, 8, 4));
};

TEST_F(TrainerCommands, CrossvalRunsEveryFoldAndAveragesTheirMetrics) {
  const std::string said =
      output(Arguments{"crossval", job_, "--folds", "3", "--out", run_} + data_);
  const auto file = nlohmann::json::parse(read_file(run_ + "/crossval.json"));
  ASSERT_EQ(file.at("folds").size(), 3u);
  double mean = 0;
  int64_t held = 0;
  for (int fold = 0; fold < 3; ++fold) {
    const std::string folder = run_ + "/fold-" + std::to_string(fold);
    EXPECT_NE(said.find("fold " + std::to_string(fold)), std::string::npos) << said;
    const auto losses = metric_of(folder, "eval", "held_out_loss");
    ASSERT_EQ(losses.size(), 1u) << folder;
    EXPECT_EQ(file.at("folds")[static_cast<size_t>(fold)].at("loss"), losses[0]);
    mean += losses[0] / 3;
    for (const std::string& line : lines_in(folder + "/events.jsonl"))
      if (const auto event = nlohmann::json::parse(line); event.at("event") == "data") {
        held += event.at("held_out").get<int64_t>();
        EXPECT_EQ(event.at("held_out").get<int64_t>() + event.at("records").get<int64_t>(), 61);
      }
    // All of the fold was evaluated, not train.eval_batches of it.
    for (const std::string& line : lines_in(folder + "/metrics.jsonl"))
      if (const auto event = nlohmann::json::parse(line); event.at("event") == "eval") {
        int64_t counted = 0;
        for (const auto& one : event.at("metrics").at("per_class"))
          counted += one.at("count").get<int64_t>();
        EXPECT_GT(counted, 3 * 4 / 2);
        held -= counted;
      }
  }
  EXPECT_EQ(held, 0) << "every record is evaluated exactly once";
  EXPECT_NEAR(file.at("mean").at("loss").get<double>(), mean, 1e-12);
  EXPECT_GT(file.at("deviation").at("loss").get<double>(), 0);
  EXPECT_TRUE(file.at("mean").contains("accuracy"));
}

TEST_F(TrainerCommands, CrossvalOfOneFoldIsThatFoldsTraining) {
  output(Arguments{"crossval", job_, "--folds", "2", "--out", run_} + data_);
  Command alone(Arguments{"train", job_, "--ranks", "2", "--out", folder_ / "alone"} + data_ +
                set({"data.folds=2", "data.fold=1"}));
  EXPECT_EQ(alone.wait(), 0) << alone.err();
  const auto end = nlohmann::json::parse(lines_in(run_ + "/fold-1/events.jsonl").back());
  // The state does not know how much of it was evaluated.
  EXPECT_EQ(end.at("state_sha256"), alone.hash());
}

TEST_F(TrainerCommands, CrossvalThatFailsNamesTheFoldAndTheReason) {
  const std::string said = refused(Arguments{"crossval", job_, "--folds", "2", "--out", run_} +
                                   data_ + set({"data.labels=" + (folder_ / "missing.npy")}));
  EXPECT_NE(said.find("fold "), std::string::npos) << said;
  EXPECT_NE(said.find("missing.npy: No such file"), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(run_)) << "the next try may use the same folder";
  EXPECT_NE(refused({"crossval", "mlp-points", "--folds", "2", "--out", folder_ / "b"}, 2)
                .find("no end to its records"),
            std::string::npos);
}

TEST_F(TrainerCommands, CrossvalThatIsInterruptedSavesItsFoldsAndLeavesNobodyBehind) {
  Command crossval(Arguments{"crossval", job_, "--folds", "3", "--out", run_} + data_ +
                   set({"train.steps=1000000"}));
  ASSERT_TRUE(reaches(run_ + "/fold-0", 3)) << crossval.err();
  crossval.signal_group(SIGINT);  // as a terminal sends it
  EXPECT_EQ(crossval.wait(), 130) << crossval.err();
  EXPECT_TRUE(eventually([&] { return crossval.processes().empty(); }));
  EXPECT_TRUE(std::filesystem::exists(run_ + "/fold-0/checkpoints/latest"));
  EXPECT_FALSE(std::filesystem::exists(run_ + "/crossval.json"));
}

TEST_F(TrainerCommands, CrossvalPassesOnASignalThatItAloneGets) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string run = folder_ / std::to_string(signal);
    Command crossval(Arguments{"crossval", job_, "--folds", "3", "--out", run} + data_ +
                     set({"train.steps=1000000", "train.checkpoint_every=1"}));
    ASSERT_TRUE(reaches(run + "/fold-0", 3)) << crossval.err();
    crossval.signal(signal);
    EXPECT_EQ(crossval.wait(), 128 + signal) << crossval.err();
    EXPECT_EQ(lines_of(crossval.err()).size(), 1u) << crossval.err();
    EXPECT_TRUE(crossval.says("0 of 3 folds are done")) << crossval.out();
    EXPECT_TRUE(crossval.says("tutti train --resume " + run + "/fold-0")) << crossval.out();
    EXPECT_TRUE(std::filesystem::exists(run + "/fold-0/checkpoints/latest/manifest.json"));
    EXPECT_EQ(half_written(run), std::vector<std::string>{});
    EXPECT_TRUE(eventually([&] { return crossval.processes().empty(); }));
  }
}

TEST_F(TrainerCommands, CrossvalThatIsStoppedKeepsTheFoldsThatAreDone) {
  Command crossval(Arguments{"crossval", job_, "--folds", "40", "--out", run_} + data_ +
                   set({"train.steps=200"}));
  ASSERT_TRUE(eventually([&] { return crossval.says("fold 0  "); })) << crossval.err();
  crossval.signal(SIGTERM);
  EXPECT_EQ(crossval.wait(), 143) << crossval.err();
  EXPECT_TRUE(crossval.says("of 40 folds are done")) << crossval.out();
  EXPECT_TRUE(crossval.says("tutti plot " + run_ + "/fold-0")) << crossval.out();
  EXPECT_EQ(half_written(run_), std::vector<std::string>{});
}

TEST_F(TrainerCommands, CrossvalOfTooManyFoldsIsRefusedAtTheFirst) {
  const std::string said =
      refused(Arguments{"crossval", job_, "--folds", "64", "--out", run_} + data_);
  EXPECT_NE(said.find("it has 61 records, too few for 64 folds"), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(TrainerCommands, DataTellsPartsClassesStatisticsPartitionAndOrder) {
  const std::string said = output(Arguments{"data", job_, "--ranks", "3"} + data_ +
                                  set({"layout.partition=hash", "data.scale=standardise"}));
  const auto count = [&](const std::string& part) {
    for (const std::string& line : lines_of(said))
      if (line.starts_with(part)) return std::stoi(line.substr(10));
    return -1;
  };
  EXPECT_EQ(count("train") + count("held out"), 61) << said;
  EXPECT_NE(said.find("scaled by  channel 0: mean "), std::string::npos) << said;
  EXPECT_NE(said.find("partition of the training records by \"hash\" over 3 ranks"),
            std::string::npos)
      << said;
  const auto order = [&](const Arguments& more) {
    for (const std::string& line : lines_of(output(Arguments{"data", job_} + data_ + more)))
      if (line.starts_with("order ")) return line;
    return std::string();
  };
  const std::string expected = order({});
  EXPECT_EQ(expected.size(),
            std::string("order      0123456789abcdef of the first 50 samples").size())
      << expected;
  EXPECT_EQ(order({"--ranks", "2", "--set", "layout.partition=even"}), expected);
  EXPECT_NE(order(set({"train.seed=9"})), expected);
  EXPECT_NE(order(set({"data.resample=balanced"})), expected);
}

TEST_F(TrainerCommands, DataNamesWhatIsSkipped) {
  const std::string table =
      folder_.write("t.csv", "a,k\n1,no\nx,yes\n2,yes\n3,no\n4,no\n5,yes\n6,no\n7,yes\n");
  const Arguments arguments =
      Arguments{"data", job_} + set({"data.kind=csv", "data.path=" + table, "data.held_out=0.5",
                                     "data.columns=[\"a: number\", \"k: target no|yes\"]",
                                     "model.inputs=1", "model.classes=2", "data.scale=none"});
  EXPECT_NE(refused(arguments).find(table + ":3:"), std::string::npos);
  const std::string said = output(arguments + set({"data.bad=skip"}));
  EXPECT_NE(said.find("skipped    1 records"), std::string::npos) << said;
  EXPECT_NE(said.find(table + ":3:"), std::string::npos) << said;
  EXPECT_NE(said.find("no "), std::string::npos) << said;
}

TEST_F(TrainerCommands, DataAndTrainSayWhereFewerAreHeldOutThanAskedFor) {
  const auto held = [](uint64_t seed) {
    int count = 0;
    for (uint64_t i = 0; i < 16; ++i) count += held_out(seed, i, 0.25);
    return count;
  };
  uint64_t seed = 1;
  while (held(seed) != 1) ++seed;
  const Arguments few =
      Arguments{job_, "--ranks", "2"} + set(write_images(folder_, "few", 16, 8, 4)) +
      set({"data.held_out=0.25", "train.steps=1", fmt::format("train.seed={}", seed)});
  const std::string said = "data.held_out = 0.25 of 16 records would be 4, but 1 came out";
  EXPECT_NE(output(Arguments{"data"} + few).find(said), std::string::npos);
  EXPECT_NE(output(Arguments{"train", "--out", run_} + few).find("notice  " + said),
            std::string::npos);
  const std::string exact = output(Arguments{"data"} + few + set({"data.held_out=4"}));
  EXPECT_NE(exact.find("held out   4 records"), std::string::npos) << exact;
  EXPECT_EQ(exact.find("notice"), std::string::npos) << exact;
}

TEST_F(TrainerCommands, GenerateMakesRecordsThatCanBeTrainedOn) {
  output(Arguments{"train", job_, "--ranks", "2", "--out", run_} + data_ + autoencoder());
  const auto made = [&](const std::string& name, const Arguments& more) {
    const std::string path = folder_ / name;
    const std::string said = output(Arguments{"generate", run_, "-o", path} + more);
    EXPECT_NE(said.find(path), std::string::npos) << said;
    return read_file(path);
  };
  const std::string bytes = made("made.npy", {"--count", "70"});  // more than are decoded at once
  EXPECT_EQ(bytes.size() % 64, 70 * 64 * 4 % 64);
  EXPECT_GE(bytes.size(), 70u * 64 * 4);
  EXPECT_EQ(made("again.npy", {"--count", "70"}), bytes);
  EXPECT_NE(made("other.npy", {"--count", "70", "--seed", "2"}), bytes);
  // A longer file begins with the same samples.
  const std::string longer = made("longer.npy", {"--count", "130"});
  EXPECT_EQ(longer.substr(longer.size() - 130 * 256, 70 * 256),
            bytes.substr(bytes.size() - 70 * 256));
  output(Arguments{"train", job_, "--out", folder_ / "next"} + autoencoder() +
         set({"data.path=" + (folder_ / "made.npy"), "data.scale=none"}));
  EXPECT_EQ(metric_of(folder_ / "next", "step", "loss").size(), 4u);
}

TEST_F(TrainerCommands, GenerateRefusesRunsThatCannot) {
  output(Arguments{"train", job_, "--steps", "1", "--out", run_} + data_);
  EXPECT_NE(refused({"generate", run_, "-o", folder_ / "x.npy"})
                .find("a model of kind mlp generates no samples"),
            std::string::npos);
  output(Arguments{"train", job_, "--steps", "1", "--out", folder_ / "plain"} + data_ +
         autoencoder() + set({"model.variational=false"}));
  EXPECT_NE(refused({"generate", folder_ / "plain", "-o", folder_ / "x.npy"})
                .find("model.variational is off"),
            std::string::npos);
  EXPECT_NE(refused({"generate", folder_ / "none", "-o", folder_ / "x.npy"}).find("no such run"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x.npy"));
}

TEST_F(TrainerCommands, PlotDrawsTheCurvesOfSeveralRuns) {
  for (const char* name : {"first", "second"})
    output(Arguments{"train", job_, "--ranks", "2", "--out", folder_ / name} + data_ +
           set({"train.eval_every=4", "train.seed=" + std::to_string(name[0])}));
  const std::string picture = folder_ / "loss.svg";
  output({"plot", folder_ / "first", folder_ / "second", "-o", picture});
  const std::string svg = read_file(picture);
  EXPECT_TRUE(svg.find("<svg") != std::string::npos && svg.find("</svg>") != std::string::npos);
  EXPECT_TRUE(svg.find("first") != std::string::npos && svg.find("second") != std::string::npos);
  output({"plot", folder_ / "first", "--metric", "accuracy", "-o", folder_ / "accuracy.svg"});
  EXPECT_TRUE(std::filesystem::exists(folder_ / "accuracy.svg"));
  const std::string said =
      refused({"plot", folder_ / "first", "--metric", "acuracy", "-o", folder_ / "no.svg"});
  EXPECT_NE(said.find("has no metric \"acuracy\"; it has "), std::string::npos) << said;
  EXPECT_NE(said.find("accuracy"), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no.svg"));
}

TEST_F(TrainerCommands, TrainEndsWithTheAccuracyOnTheTestData) {
  const Arguments images = write_images(folder_, "test", 33, 8, 4);
  Arguments test;
  test.push_back("data.test=" + images[0].substr(std::string("data.path=").size()));
  test.push_back("data.test_labels=" + images[1].substr(std::string("data.labels=").size()));
  std::set<std::string> lines;
  for (const char* ranks : {"1", "3"}) {
    const std::string said = output(
        Arguments{"train", job_, "--ranks", ranks, "--out", folder_ / ranks} + data_ + set(test));
    for (const std::string& line : lines_of(said))
      if (line.starts_with("test accuracy 0.") || line.starts_with("test accuracy 1."))
        lines.insert(line);
  }
  EXPECT_EQ(lines.size(), 1u) << testing::PrintToString(lines);
  int64_t counted = 0;
  for (const std::string& line : lines_in((folder_ / "3") + "/metrics.jsonl"))
    if (const auto event = nlohmann::json::parse(line); event.at("event") == "test")
      for (const auto& one : event.at("metrics").at("per_class"))
        counted += one.at("count").get<int64_t>();
  EXPECT_EQ(counted, 33);
}

TEST_F(TrainerCommands, ADamagedFileOfOneRanksShareEndsTheRunWithItsName) {
  const std::string folder = folder_ / "pictures";
  for (const char* name : {"cat", "dog"}) {
    std::filesystem::create_directories(folder + "/" + name);
    for (int i = 0; i < 3; ++i)
      std::ofstream(folder + "/" + name + "/" + std::to_string(i) + ".png") << "\x89PNG no";
  }
  for (const char* workers : {"process", "thread"}) {
    const std::string said =
        refused(Arguments{"train", job_, "--ranks", "3", "--out", run_} +
                set({"data.kind=images", "data.path=" + folder, "model.classes=2",
                     "model.image=[1, 8, 8]", "layout.workers=" + std::string(workers)}));
    EXPECT_NE(said.find(folder + "/cat/0.png: damaged PNG"), std::string::npos) << said;
    EXPECT_FALSE(std::filesystem::exists(run_));
  }
}

}  // namespace
}  // namespace tutti
