// The promise over meshes: whatever is sliced (state, layers, stages), recomputed or folded
// elsewhere, on 1 to 8 ranks, a job ends in the state of one rank and says the same numbers on its
// way.
#include "support/layout_runs.h"
#include "support/small_data.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

struct Case {
  std::string name, job, settings;     // what the job is
  std::vector<std::string> layouts{};  // besides one rank
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class MeshBits : public testing::TestWithParam<Case> {};

TEST_P(MeshBits, AreThoseOfOneRank) {
  TempFolder folder;
  Arguments job =
      Arguments{folder.write("job.toml", GetParam().job)} + settings_of(GetParam().settings);
  if (GetParam().job.find("\"numpy\"") != std::string::npos)
    job = job + set(write_images(folder, "images", 60, 8, 4));
  const Outcome expected = train_into(folder / "one", job + settings_of("ranks=1"));
  ASSERT_EQ(expected.hash.size(), 64u);
  EXPECT_GE(expected.count("step"), 10u);
  EXPECT_GE(expected.count("eval"), 2u);
  for (size_t i = 0; i < GetParam().layouts.size(); ++i) {
    SCOPED_TRACE(GetParam().layouts[i]);
    EXPECT_EQ(train_into(folder / std::to_string(i), job + settings_of(GetParam().layouts[i])),
              expected);
  }
}

const std::vector<Case> kCases = {
    {"GptSlicedByZero",
     kSmallGpt,
     "",
     {
         "ranks=1 zero=3",
         "ranks=2 zero=1 workers=thread",
         "ranks=2 zero=3 transport=tcp overlap=false",
         "ranks=3 zero=2 workers=thread transport=tcp",
         "ranks=4 zero=3 depth=2",
     }},
    {"TiedGptSlicedByZeroWithReplicas",
     kSmallGpt,
     "model.tied=true",
     {
         "ranks=2 zero=2 recompute=full workers=thread",
         "ranks=3 zero=1 shards=1",
         "ranks=4 zero=1 shards=2 workers=thread",
         "ranks=4 zero=2 shards=2 transport=tcp",
         "ranks=4 zero=3 shards=2 recompute=selective workers=thread",
     }},
    {"TiedGptWhoseRanksHaveUnequalPartsOfTheLanes",
     kSmallGpt,
     "model.tied=true",
     {
         "ranks=3 zero=3",
         "ranks=3 zero=3 depth=3 recompute=full overlap=false transport=tcp workers=thread",
         "ranks=6 pipeline=2 zero=3 schedule=zbv workers=thread",
         "ranks=6 pipeline=2 zero=2 schedule=interleaved",
     }},
    {"GptWhoseRanksHaveUnequalPartsOfEveryRound",
     kSmallGpt,
     "numerics.order=micro train.lanes=5",
     {
         "ranks=3 zero=3 fold=owner",
         "ranks=2 zero=3 workers=thread",
         "ranks=4 pipeline=2 schedule=interleaved fold=owner workers=thread",
         "ranks=6 pipeline=2 zero=3 schedule=gpipe fold=owner overlap=false workers=thread",
     }},
    {"TiedGptSummedByHosts",
     kSmallGpt,
     "model.tied=true",
     {
         "ranks=4 hosts=2 zero=1 shards=2",
         "ranks=4 hosts=2 zero=2 shards=2 overlap=false workers=thread",
         "ranks=4 hosts=2 zero=3 shards=2 transport=tcp workers=thread",
         "ranks=4 hosts=2 zero=1 workers=thread",
         "ranks=4 hosts=2 zero=3",
         "ranks=8 hosts=4 pipeline=2 workers=thread",
         "ranks=8 hosts=4 pipeline=2 zero=1 shards=2 schedule=zero-bubble",
     }},
    {"GptInStages",
     kSmallGpt,
     "",
     {
         "ranks=2 pipeline=2 schedule=gpipe workers=thread",
         "ranks=2 pipeline=2",
         "ranks=2 pipeline=2 schedule=interleaved overlap=false workers=thread",
         "ranks=2 pipeline=2 schedule=zero-bubble transport=tcp",
         "ranks=2 pipeline=2 schedule=zbv workers=thread",
         "ranks=2 pipeline=2 schedule=zbv in_flight=4",
         "ranks=3 pipeline=3 schedule=zero-bubble in_flight=2 workers=thread",
     }},
    {"TiedGptInStages",
     kSmallGpt,
     "model.tied=true",
     {
         "ranks=5 pipeline=5 workers=thread",
         "ranks=2 pipeline=2 schedule=interleaved recompute=full workers=thread",
         "ranks=3 pipeline=3 schedule=zero-bubble cut=blocks.0,head recompute=selective",
         "ranks=4 pipeline=4 schedule=gpipe transport=tcp workers=thread",
         "ranks=2 pipeline=2 schedule=zbv cut=blocks.0,blocks.2,head",
         "ranks=2 pipeline=2 schedule=zbv in_flight=3 cut=blocks.0,blocks.2,head recompute=full "
         "workers=thread",
     }},
    {"TiedGptInStagesSlicedByZero",
     kSmallGpt,
     "model.tied=true",
     {
         "ranks=4 pipeline=2 zero=3 schedule=zbv",
         "ranks=4 pipeline=2 zero=3 schedule=zbv in_flight=3 workers=thread",
         "ranks=4 pipeline=2 zero=2 schedule=zero-bubble recompute=full workers=thread",
         "ranks=6 pipeline=2 zero=1 workers=thread",
         "ranks=8 pipeline=2 zero=3 shards=2 schedule=interleaved workers=thread",
         "ranks=8 pipeline=4 zero=1 schedule=gpipe overlap=false transport=tcp",
     }},
    {"LlamaOnHybrids",
     kSmallGpt,
     "model.positions=rotary model.norm=rms model.activation=swiglu model.kv_heads=2 "
     "model.bias=false",
     {
         "ranks=6 pipeline=3 cut=blocks.1,blocks.2 workers=thread",
         "ranks=8 pipeline=2 zero=2 shards=4",
         "ranks=4 pipeline=2 zero=3 depth=3 schedule=gpipe recompute=selective workers=thread",
     }},
    {"GptInTwoSlices",
     kSmallGpt,
     "train.tensor_slices=2",
     {
         "ranks=2 tensor=2",
         "ranks=2 tensor=2 transport=tcp overlap=false recompute=selective",
         "ranks=2 zero=3 workers=thread",
         "ranks=4 tensor=2 zero=2 workers=thread",
         "ranks=4 tensor=2 pipeline=2 schedule=zero-bubble",
     }},
    {"TiedGptInTwoSlices",
     kSmallGpt,
     "train.tensor_slices=2 model.tied=true",
     {
         "ranks=2 pipeline=2 schedule=zbv workers=thread",
         "ranks=4 tensor=2 pipeline=2 schedule=interleaved recompute=full workers=thread",
         "ranks=8 tensor=2 pipeline=2 zero=3 workers=thread",
         "ranks=8 tensor=2 zero=1 shards=2 transport=tcp workers=thread",
     }},
    {"TiedGptInFourSlices",
     kSmallGpt,
     "train.tensor_slices=4 model.tied=true",
     {
         "ranks=2 tensor=2 recompute=full workers=thread",
         "ranks=3 tensor=3",
         "ranks=4 tensor=4 workers=thread",
         "ranks=8 tensor=4 zero=3",
         "ranks=8 tensor=4 pipeline=2 transport=tcp workers=thread",
     }},
    {"TiedGptSummedAfterEachMicroBatch",
     kSmallGpt,
     "model.tied=true numerics.order=micro",
     {
         "ranks=2 workers=thread",
         "ranks=4 zero=2 fold=owner",
         "ranks=4 zero=3 fold=owner shards=2 workers=thread",
         "ranks=3 zero=1 fold=owner transport=tcp",
         "ranks=4 pipeline=2 zero=3 schedule=gpipe workers=thread",
     }},
    {"MlpWithMomentum",
     kSmallMlp,
     "train.optimizer=sgd train.momentum=0.9 train.nesterov=true",
     {
         "ranks=3 fold=owner workers=thread",
         "ranks=3 zero=2 fold=owner",
         "ranks=7 zero=3 fold=owner workers=thread",
         "ranks=4 pipeline=2 fold=owner schedule=zero-bubble workers=thread",
         "ranks=6 pipeline=3 zero=1 schedule=gpipe workers=thread",
     }},
    {"MlpWithoutMomentsOffloaded",
     kSmallMlp,
     "train.optimizer=sgd",
     {
         "ranks=2 offload=optimizer workers=thread",
         "ranks=2 offload=all",
     }},
    {"MlpInTwoSlicesClippedByUnit",
     kSmallMlp,
     "train.tensor_slices=2 model.norm=none train.clip_by=unit train.clip=0.05",
     {
         "ranks=2 tensor=2 workers=thread",
         "ranks=6 tensor=2 zero=1 workers=thread",
         "ranks=4 tensor=2 pipeline=2",
         "ranks=3 zero=2 transport=tcp",
     }},
    {"CnnWithBatchNorm",
     kSmallCnn,
     "",
     {
         "ranks=2 zero=2 workers=thread",
         "ranks=4 zero=3",
         "ranks=2 pipeline=2 recompute=full workers=thread",
         "ranks=4 pipeline=2 zero=1 schedule=zbv transport=tcp",
     }},
    {"CnnInTwoSlices",
     kSmallCnn,
     "train.tensor_slices=2",
     {
         "ranks=2 tensor=2",
         "ranks=4 tensor=2 pipeline=2 workers=thread",
         "ranks=4 tensor=2 zero=3 recompute=full workers=thread",
     }},
    {"TiedGptByAutograd",
     kSmallGpt,
     "model.tied=true model.autograd=true",
     {
         "ranks=2 zero=3",
         "ranks=2 pipeline=2 schedule=interleaved recompute=full",
         "ranks=4 pipeline=2 zero=1",
     }},
    {"GptWithLamb",
     kSmallGpt,
     "train.optimizer=lamb train.tensor_slices=2",
     {
         "ranks=2 tensor=2 workers=thread",
         "ranks=4 tensor=2 pipeline=2 workers=thread",
         "ranks=2 recompute=full",
     }},
};

INSTANTIATE_TEST_SUITE_P(Of, MeshBits, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti
