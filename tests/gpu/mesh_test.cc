// Meshes on a GPU: whatever is sliced, staged, recomputed or summed elsewhere, on 2 and 4 ranks
// that share a GPU, a job ends in the state of one rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "support/command.h"
#include "support/layout_pairs.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr const char* kGpt = R"(
[model]
kind = "gpt"
layers = 4
width = 128
heads = 4
context = 64
vocab = 256
[data]
kind = "walk"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 2
steps = 10
clip = 1.0
sample_bytes = 0
eval_every = 5
eval_batches = 1
)";

// Without norms, so that values overflow in forward.
constexpr const char* kDiverging = R"(
[model]
kind = "mlp"
inputs = 2
hidden = [64, 64, 64, 64, 64, 64]
classes = 2
[data]
kind = "points"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 8
steps = 10
optimizer = "sgd"
lr = 1e6
clip = 0
schedule = "constant"
)";

/// "zero=3 train.lanes=4": those without a section are of the layout.
Arguments settings_of(const std::string& text) {
  Arguments all;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool full = word.substr(0, word.find('=')).find('.') != std::string::npos;
    all = all + set({full ? word : "layout." + word});
  }
  return all;
}

struct Case {
  std::string name, settings;
  std::vector<std::string> layouts;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class GpuMesh : public testing::TestWithParam<Case> {};

TEST_P(GpuMesh, EveryLayoutHasTheStateOfOneRank) {
  TempFolder folder;
  const Arguments job = Arguments{"train", folder.write("job.toml", kGpt)} +
                        set({"numerics.device=cuda"}) + settings_of(GetParam().settings);
  int runs = 0;
  const auto hash_of = [&](const std::string& layout) {
    Command command(job + settings_of(layout) +
                    Arguments{"--out", folder / std::to_string(runs++)});
    EXPECT_EQ(command.wait(Seconds(120)), 0) << layout << "\n" << command.out() << command.err();
    return command.hash();
  };
  const std::string one = hash_of("ranks=1");
  ASSERT_EQ(one.size(), 64U);
  for (const std::string& layout : GetParam().layouts) EXPECT_EQ(hash_of(layout), one) << layout;
}

TEST(GpuMeshState, EveryLayoutGoesOnWithOthers) {
  TempFolder folder;
  const Arguments job =
      Arguments{folder.write("job.toml", kGpt)} +
      set({"numerics.device=cuda", "train.steps=4", "train.eval_every=0", "train.tensor_slices=2"});
  EXPECT_GE(
      expect_every_layout_goes_on_with_others(
          job,
          {"ranks=1", "ranks=2", "ranks=2 zero=3", "ranks=2 pipeline=2",
           "ranks=2 tensor=2 recompute=full", "ranks=2 hosts=2 zero=1", "ranks=1 offload=all"},
          Seconds(120)),
      20);
}

const std::vector<Case> kCases = {
    {"Zero",
     "numerics.precision=bfloat16 model.tied=true",
     {"ranks=1 zero=3", "ranks=2 zero=1", "ranks=2 zero=2 overlap=false", "ranks=4 zero=3",
      "ranks=4 zero=3 graph=false", "ranks=4 zero=2 shards=2 recompute=full"}},
    {"ZeroOnHosts",
     "numerics.precision=bfloat16",
     {"ranks=4 hosts=2 zero=1 shards=2", "ranks=4 hosts=2 zero=3",
      "ranks=4 hosts=2 zero=2 graph=false"}},
    {"ZeroInFloat32",
     "",
     {"ranks=2 zero=3 recompute=selective", "ranks=3 zero=3", "ranks=4 zero=1"}},
    {"Pipeline",
     "numerics.precision=bfloat16",
     {"ranks=2 pipeline=2", "ranks=2 pipeline=2 schedule=gpipe",
      "ranks=2 pipeline=2 schedule=interleaved", "ranks=2 pipeline=2 schedule=zero-bubble",
      "ranks=2 pipeline=2 schedule=zbv", "ranks=2 pipeline=2 schedule=zbv in_flight=4",
      "ranks=4 pipeline=4"}},
    {"TiedPipelineInFloat32",
     "model.tied=true",
     {"ranks=2 pipeline=2", "ranks=4 pipeline=4 schedule=zero-bubble",
      "ranks=4 pipeline=2 zero=3"}},
    {"Columns",
     "train.tensor_slices=2",
     {"ranks=2 tensor=2", "ranks=2 zero=3", "ranks=4 tensor=2 zero=2 recompute=full",
      "ranks=4 tensor=2 pipeline=2"}},
    {"ColumnsInBfloat16",
     "train.tensor_slices=2 numerics.precision=bfloat16",
     {"ranks=2 tensor=2", "ranks=4 tensor=2 pipeline=2 schedule=zero-bubble"}},
    {"Offload",
     "model.tied=true",
     {"ranks=1 offload=optimizer", "ranks=1 offload=all",
      "ranks=1 offload=all graph=false overlap=false", "ranks=2 offload=optimizer zero=1",
      "ranks=4 offload=optimizer zero=3"}},
    {"OffloadInBfloat16",
     "numerics.precision=bfloat16",
     {"ranks=1 offload=all", "ranks=2 offload=all pipeline=2 schedule=zero-bubble",
      "ranks=4 offload=optimizer pipeline=2 zero=2"}},
    {"Rounds",
     "numerics.order=micro numerics.precision=float16",
     {"ranks=2 zero=2", "ranks=4 zero=3 fold=owner", "ranks=4 pipeline=2 zero=1 schedule=gpipe"}},
};

TEST(GpuMeshState, ALossThatIsNotFiniteIsNamedAsOnOneRank) {
  TempFolder folder;
  const Arguments job =
      Arguments{"train", folder.write("job.toml", kDiverging)} + set({"numerics.device=cuda"});
  int runs = 0;
  const auto failure = [&](const std::string& layout) {
    Command command(job + settings_of(layout) +
                    Arguments{"--out", folder / std::to_string(runs++)});
    EXPECT_EQ(command.wait(Seconds(120)), 1) << layout << "\n" << command.out();
    return command.err();
  };
  const std::string one = failure("ranks=1");
  EXPECT_NE(one.find("the first block with a non-finite output is "), std::string::npos) << one;
  for (const char* layout : {"ranks=3 zero=3", "ranks=2 pipeline=2"})
    EXPECT_EQ(failure(layout), one) << layout;
}

INSTANTIATE_TEST_SUITE_P(Of, GpuMesh, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti
