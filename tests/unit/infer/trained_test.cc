// First values from files, and models that only answer.
#include "infer/trained.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "config/model_rules.h"
#include "infer/prepare.h"
#include "model/make_model.h"
#include "state/checkpoint.h"
#include "state/manifest.h"
#include "support/flat_model.h"
#include "train/run_folder.h"

namespace tutti {
namespace {

constexpr const char* kJob = R"(
[model]
kind = "mlp"
inputs = 3
hidden = [7, 5]
classes = 4
init_scale = 0.5
norm = "batch"
dropout = 0.2
[data]
kind = "points"
[train]
micro_batch_size = 6
)";

Job job_of(const std::string& more = "") {
  Job job = parse_job(std::string(kJob) + more, "job", {});
  resolve(job, this_machine(), {});
  return job;
}

class TrainedTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tutti-trained-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// A run whose checkpoint holds the model as drawn with the seed, buffers other than they start,
  /// and a slot.
  std::string run_of(const std::string& name, const Job& job, uint64_t seed, int64_t step = 3) {
    const std::string path = folder_ + "/" + name;
    if (!std::filesystem::exists(path)) create_run(path, job);
    const Model model = make_model(job);
    const ModelShape shape = describe(model);
    Accounts accounts;
    Units units(model, shape, all_held(shape), {"m"}, seed, {}, accounts);
    State state = units.state({step, 0, ""});
    for (StateEntry& entry : state.entries)
      if (entry.name.ends_with("norm.mean"))
        std::fill(entry.values.begin(), entry.values.end(), 0.25F);
    save_checkpoint(path + "/checkpoints", state, to_toml(job));
    return path;
  }
  static std::string fault(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no fault";
  }
  std::string folder_;
};

std::vector<at::Tensor> some_data(int64_t rows = 6) {
  return {at::arange(rows * 3, at::kFloat).mul(0.7).sin().reshape({rows, 3}),
          at::zeros({rows}, at::kLong)};
}

/// What the model answers in evaluation.
at::Tensor answer(FlatModel& flat, const std::vector<at::Tensor>& data) {
  Pass pass;
  pass.training = false;
  flat.runner->forward_all(pass, data);
  return flat.runner->border("logits").clone();
}

TEST_F(TrainedTest, TensorsPathTakesAFileACheckpointOrARun) {
  const std::string run = run_of("run", job_of(), 5, 3);
  run_of("run", job_of(), 6, 12);
  const std::string latest = run + "/checkpoints/step-00000012";
  EXPECT_EQ(std::filesystem::canonical(tensors_path(run)),
            std::filesystem::canonical(latest + "/" + kParametersFile));
  const std::string first = run + "/checkpoints/step-00000003";
  EXPECT_EQ(tensors_path(first), first + "/" + kParametersFile);
  EXPECT_EQ(tensors_path(first + "/" + kParametersFile), first + "/" + kParametersFile);
  for (const std::string& none : {folder_, folder_ + "/nothing"})
    EXPECT_EQ(fault([&] { tensors_path(none); }),
              none + ": neither a safetensors file, nor a checkpoint, nor a run that has one");
}

TEST_F(TrainedTest, StartFromTakesEveryParameterThatThePatternPicks) {
  const std::string run = run_of("run", job_of(), 5);
  Model model = make_model(job_of());
  start_from(model, run, "layers.0.*");
  FlatModel mixed(std::move(model), 9), theirs(make_model(job_of()), 5),
      own(make_model(job_of()), 9);
  EXPECT_TRUE(at::equal(mixed.value(0, 0), theirs.value(0, 0)));
  EXPECT_TRUE(at::equal(mixed.value(1, 0), own.value(1, 0)));
  EXPECT_TRUE(at::equal(mixed.value(2, 0), own.value(2, 0)));
  EXPECT_EQ(mixed.value(0, 4)[0].item<float>(), 0.25F) << "a buffer is taken, too";
  EXPECT_EQ(mixed.value(1, 4)[0].item<float>(), 0);
}

TEST_F(TrainedTest, StartFromListsAllThatIsMissingOrShapedOtherwise) {
  const std::string run = run_of("run", job_of(), 5);
  Job other = job_of();
  other.model.hidden = {7, 8, 2};
  Model model = make_model(other);
  const std::string said = fault([&] { start_from(model, run, "*"); });
  EXPECT_TRUE(said.find(kParametersFile) != std::string::npos &&
              said.find("do not fit the model:") != std::string::npos)
      << said;
  for (const char* part :
       {"\n  layers.1.weight is [5, 7], the model has [8, 7]", "\n  layers.2.weight is missing",
        "\n  layers.2.norm.variance is missing", "\n  head.weight is [4, 5], the model has [4, 2]"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in " << said;
  EXPECT_EQ(said.find("layers.0"), std::string::npos) << said;
  EXPECT_EQ(fault([&] { start_from(model, run, "layers.0.*"); }), "no fault");
  EXPECT_EQ(fault([&] { start_from(model, run, "layer.*"); }),
            "model.init_only = \"layer.*\" picks no parameter of the model");
}

TEST_F(TrainedTest, PreparedModelStartsFromTheJobsFile) {
  Job job = job_of();
  job.model.init_from = run_of("run", job_of(), 5);
  FlatModel prepared(prepared_model(job, make_model), 9), theirs(make_model(job_of()), 5);
  EXPECT_TRUE(at::equal(prepared.value(2, 0), theirs.value(2, 0)));
  job.model.init_only = "head.*";
  FlatModel some(prepared_model(job, make_model), 9), own(make_model(job_of()), 9);
  EXPECT_TRUE(at::equal(some.value(2, 0), theirs.value(2, 0)));
  EXPECT_TRUE(at::equal(some.value(0, 0), own.value(0, 0)));
  job.model.init_from = folder_ + "/none";
  FlatModel resumed(prepared_model(job, make_model, false), 9);
  EXPECT_TRUE(at::equal(resumed.value(0, 0), own.value(0, 0)))
      << "a checkpoint has all values: the file may be gone";
  EXPECT_NE(fault([&] { prepared_model(job, make_model); }).find("none: neither"),
            std::string::npos);
}

TEST_F(TrainedTest, AnswersAsTheModelDoesInEvaluation) {
  const std::string run = run_of("run", job_of("[augment]\nmixup = 0\n"), 5);
  Model model = make_model(job_of());
  start_from(model, run, "*");
  FlatModel flat(std::move(model), 9);
  const at::Tensor expected = answer(flat, some_data());
  Trained trained(run, 6, job_of().numerics, make_model);
  EXPECT_TRUE(at::equal(trained.output(some_data()), expected));
  EXPECT_EQ(trained.job().train.micro_batch_size, 6);
  Trained small(run, 3, job_of().numerics, make_model);
  EXPECT_TRUE(at::allclose(small.output(some_data(3)), expected.narrow(0, 0, 3), 1e-6, 1e-6))
      << "matmuls of few rows may round otherwise";
  // What mixup adds to a micro-batch is not read.
  std::vector<at::Tensor> more = some_data();
  more.push_back(at::zeros({6}, at::kLong));
  EXPECT_TRUE(at::equal(trained.output(more), expected));
}

TEST_F(TrainedTest, NamesARunThatIsNoneOrHasNoCheckpoint) {
  const auto said = [&](const std::string& run) {
    return fault([&] { Trained(run, 6, job_of().numerics, make_model); });
  };
  EXPECT_NE(said(folder_ + "/nothing").find("nothing: no such run"), std::string::npos);
  create_run(folder_ + "/young", job_of());
  EXPECT_NE(said(folder_ + "/young").find("young"), std::string::npos);
}

Job student(const std::string& teacher) {
  Job job = job_of();
  job.model.hidden = {4};
  job.loss.kind = "distill";
  job.loss.teacher = teacher;
  job.loss.temperature = 2;
  job.loss.mix = 0.5;
  return job;
}

TEST_F(TrainedTest, ATeachersAnswersAreInTheStudentsLoss) {
  const Job job = student(run_of("run", job_of(), 5));
  FlatModel taught(prepared_model(job, make_model), 9);
  Job alone = job;
  alone.loss.kind = "cross-entropy";
  FlatModel own(make_model(alone), 9);
  const auto data = some_data();
  taught.runner->forward_all({}, data);
  own.runner->forward_all({}, data);
  EXPECT_TRUE(at::equal(taught.runner->border("logits"), own.runner->border("logits")));
  EXPECT_NE(taught.runner->loss().sum, own.runner->loss().sum);
  EXPECT_EQ(taught.runner->loss().count, own.runner->loss().count);
  const Job other = student(run_of("other", job_of(), 6));
  FlatModel otherwise(prepared_model(other, make_model), 9);
  otherwise.runner->forward_all({}, data);
  EXPECT_NE(otherwise.runner->loss().sum, taught.runner->loss().sum);
}

TEST_F(TrainedTest, ATeacherOfOtherDataOrClassesIsRefused) {
  Job classes = job_of();
  classes.model.classes = 7;
  const Job of_classes = student(run_of("classes", classes, 5));
  const std::string said = fault([&] { prepared_model(of_classes, make_model); });
  EXPECT_NE(said.find("classes\": its model answers"), std::string::npos) << said;
  Job inputs = job_of();
  inputs.model.inputs = 9;
  const Job of_inputs = student(run_of("inputs", inputs, 5));
  EXPECT_NE(fault([&] {
              prepared_model(of_inputs, make_model);
            }).find("reads other data than this job's"),
            std::string::npos);
}

}  // namespace
}  // namespace tutti
