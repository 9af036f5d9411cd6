// The promise itself: one job, any layout, the same bits. Every layout below must end with the hash
// of one process and write the same numbers for every step.
#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

// Odd numbers of lanes: no number of ranks owns whole subtrees only.
constexpr const char* kGpt = R"(
[model]
kind = "gpt"
layers = 2
width = 64
heads = 2
context = 32
dropout = 0.1
[data]
kind = "walk"
[train]
lanes = 5
micro_batches = 3
micro_batch_size = 2
steps = 10
lr = 1e-2
warmup = 2
weight_decay = 0.1
eval_every = 5
eval_batches = 1
)";
constexpr const char* kMlp = R"(
base = "mlp-points"
[train]
lanes = 7
micro_batches = 3
micro_batch_size = 5
steps = 12
eval_every = 6
)";

struct Result {
  std::string hash;
  std::vector<double> losses, norms, held_out;
  bool operator==(const Result&) const = default;
};
void PrintTo(const Result& result, std::ostream* out) {
  *out << result.hash << " losses " << testing::PrintToString(result.losses) << " norms "
       << testing::PrintToString(result.norms) << " held out "
       << testing::PrintToString(result.held_out);
}

struct Case {
  std::string name, job;
  Arguments settings;                // of the job
  std::vector<Arguments> layouts{};  // besides one process
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Bits : public testing::TestWithParam<Case> {};

TEST_P(Bits, DoNotDependOnTheLayout) {
  TempFolder folder;
  const std::string job = folder.write("job.toml", GetParam().job);
  int runs = 0;
  auto result_of = [&](const Arguments& layout) {
    const std::string run = folder / std::to_string(++runs);
    Command command(Arguments{"train", job, "--out", run} + set(GetParam().settings) + set(layout));
    EXPECT_EQ(command.wait(), 0) << command.err();
    EXPECT_GE(metric_of(run, "step", "loss").size(), 10u);
    return Result{command.hash(), metric_of(run, "step", "loss"),
                  metric_of(run, "step", "gradient_norm"), metric_of(run, "eval", "held_out_loss")};
  };
  const Result expected = result_of({"layout.ranks=1"});
  ASSERT_EQ(expected.hash.size(), 64u);
  EXPECT_EQ(expected.held_out.size(), 2u);
  for (const Arguments& layout : GetParam().layouts) {
    SCOPED_TRACE(testing::PrintToString(layout));
    EXPECT_EQ(result_of(layout), expected);
  }
}

const std::vector<Arguments> kOne = {
    {"layout.ranks=1", "layout.workers=thread", "layout.overlap=false"},
    {"layout.ranks=1", "layout.transport=tcp", "layout.fold=root"},
    {"layout.ranks=1", "layout.bucket_floats=1"},
};
const std::vector<Arguments> kTwo = {
    {"layout.ranks=2"},
    {"layout.ranks=2", "layout.overlap=false", "layout.fold=root"},
    {"layout.ranks=2", "layout.hosts=2", "layout.bucket_floats=5000"},
    {"layout.ranks=2", "layout.transport=tcp"},
    {"layout.ranks=2", "layout.transport=tcp", "layout.fold=root", "layout.overlap=false",
     "layout.connections=1"},
    {"layout.ranks=2", "layout.workers=thread"},
    {"layout.ranks=2", "layout.workers=thread", "layout.transport=tcp", "layout.overlap=false"},
};
const std::vector<Arguments> kThree = {
    {"layout.ranks=3", "layout.overlap=false"},
    {"layout.ranks=3", "layout.hosts=2"},
    {"layout.ranks=3", "layout.fold=root", "layout.bucket_floats=5000"},
    {"layout.ranks=3", "layout.transport=tcp", "layout.bucket_floats=1"},
    {"layout.ranks=3", "layout.transport=tcp", "layout.fold=root", "layout.overlap=false"},
    {"layout.ranks=3", "layout.workers=thread", "layout.fold=root"},
    {"layout.ranks=3", "layout.workers=thread", "layout.hosts=2", "layout.overlap=false"},
    {"layout.ranks=3", "layout.workers=thread", "layout.zero=3", "layout.overlap=false",
     "layout.partition=hash"},
};
const std::vector<Arguments> kFour = {
    {"layout.ranks=4"},
    {"layout.ranks=4", "layout.overlap=false", "layout.fold=root"},
    {"layout.ranks=4", "layout.hosts=2"},
    {"layout.ranks=4", "layout.hosts=2", "layout.fold=root", "layout.overlap=false"},
    {"layout.ranks=4", "layout.transport=tcp", "layout.hosts=2", "layout.connections=3"},
    {"layout.ranks=4", "layout.workers=thread", "layout.overlap=false"},
    {"layout.ranks=4", "layout.workers=thread", "layout.transport=tcp"},
    {"layout.ranks=5", "layout.hosts=3"},
};
const std::vector<Arguments> kSome = {
    {"layout.ranks=2", "layout.overlap=false"},
    {"layout.ranks=3", "layout.transport=tcp"},
    {"layout.ranks=3", "layout.workers=thread"},
    {"layout.ranks=4", "layout.hosts=2", "layout.fold=root"},
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const Arguments sgd = {"train.optimizer=sgd", "train.momentum=0.9", "train.nesterov=true",
                         "train.micro_batches=1"};
  const std::pair<std::string, std::vector<Arguments>> ranks[] = {{"OnOneRank", kOne},
                                                                  {"OnTwoRanks", kTwo},
                                                                  {"OnThreeRanks", kThree},
                                                                  {"OnFourRanksAndMore", kFour}};
  for (const auto& [name, layouts] : ranks) {
    all.push_back({"TiedGpt" + name, kGpt, {"model.tied=true"}, layouts});
    all.push_back({"Mlp" + name, kMlp, {}, layouts});
  }
  all.push_back({"GptWithSgd", kGpt,
                 sgd + Arguments{"train.lanes=7", "train.lr=0.1", "model.activation=gelu-tanh"},
                 kSome});
  all.push_back({"MlpWithSgd", kMlp, sgd + Arguments{"train.lanes=5", "train.lr=0.05"}, kSome});
  all.push_back({"TiedGptByAutograd", kGpt, {"model.tied=true", "model.autograd=true"}, kSome});
  const Arguments llama = {"model.positions=rotary", "model.norm=rms",   "model.activation=swiglu",
                           "model.heads=4",          "model.kv_heads=2", "model.bias=false"};
  all.push_back({"Llama", kGpt, llama, kSome});
  all.push_back({"TiedLlamaWithASmoothedLoss", kGpt,
                 llama + Arguments{"model.tied=true", "loss.label_smoothing=0.1"}, kSome});
  all.push_back({"LlamaByAutograd", kGpt, llama + Arguments{"model.autograd=true"}, kSome});
  all.push_back({"MlpByAutograd", kMlp, {"model.autograd=true", "train.clip=0"}, kSome});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, Bits, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(OtherBits, ComeFromAnotherJob) {
  TempFolder folder;
  const std::string job = folder.write("job.toml", kMlp);
  std::set<std::string> hashes;
  int runs = 0;
  for (const char* change : {"train.seed=1", "train.seed=2", "train.lanes=6", "train.lr=0.002",
                             "model.init=glorot-normal"}) {
    Command command(
        {"train", job, "--ranks", "2", "--set", change, "--out", folder / std::to_string(++runs)});
    EXPECT_EQ(command.wait(), 0) << command.err();
    EXPECT_TRUE(hashes.insert(command.hash()).second) << change << " changed nothing";
  }
}

TEST(Ring, RunsOnRequestAndSaysThatTheBitsDependOnTheLayout) {
  TempFolder folder;
  const std::string job = folder.write("job.toml", kMlp);
  for (const char* transport : {"shm", "tcp"}) {
    const std::string run = folder / transport;
    Command ring(Arguments{"train", job, "--ranks", "3", "--out", run} +
                 set({"numerics.reduce=ring", "layout.transport=" + std::string(transport)}));
    EXPECT_EQ(ring.wait(), 0) << ring.err();
    EXPECT_TRUE(ring.says("numerics.reduce = \"ring\"") &&
                ring.says("the bits depend on the layout"))
        << ring.out();
  }
  Command exact({"train", job, "--ranks", "3", "--out", folder / "exact"});
  EXPECT_EQ(exact.wait(), 0) << exact.err();
  EXPECT_FALSE(exact.says("depend on the layout"));
  // Another order of the same additions: the losses agree to the rounding of twelve small steps.
  const auto expected = metric_of(folder / "exact", "step", "loss"),
             found = metric_of(folder / "shm", "step", "loss");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]);
  EXPECT_EQ(found, metric_of(folder / "tcp", "step", "loss"));
}

}  // namespace
}  // namespace tutti
