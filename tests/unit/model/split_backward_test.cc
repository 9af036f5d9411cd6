// Backward in two parts gives the bits of backward in one: of every gradient, with the weight parts
// after all input parts, when work memory and the gradients of outputs have long been overwritten.
#include "model/make_model.h"
#include "unit/model/support/cnn_case.h"
#include "unit/model/support/gpt_case.h"
#include "unit/model/support/hand_run.h"

namespace tutti::test {
namespace {

std::vector<std::vector<at::Tensor>> parameters_of(const TwinCase& c) {
  std::vector<std::vector<at::Tensor>> all;
  for (const auto& block : owners(c.model)) {
    auto& list = all.emplace_back();
    for (const Owner& owner : block) {
      const auto b = static_cast<size_t>(owner.block);
      const ParameterShape& p = c.shape.blocks[b].parameters[static_cast<size_t>(owner.own_index)];
      list.push_back(c.values[b].narrow(0, p.offset, p.size).view(p.dims));
    }
  }
  return all;
}

void expect_splits(const TwinCase& c) {
  at::set_num_threads(1);
  const HandRun run(c.model, parameters_of(c), c.data, c.pass);
  expect_same_parts(run, c.model);
}

TEST(SplitBackward, OfTheGptHasTheBitsOfTheWhole) {
  for (const double dropout : {0.0, 0.3})
    for (const bool tied : {false, true})
      for (const bool llama : {false, true})
        for (const MatmulKind matmul : {MatmulKind::kOwn, MatmulKind::kMkl}) {
          SCOPED_TRACE(
              fmt::format("dropout {}{}{}", dropout, tied ? ", tied" : "", llama ? ", llama" : ""));
          ModelConfig config = llama ? small_llama() : small_gpt();
          config.dropout = dropout;
          config.tied = tied;
          expect_splits(GptCase(config, CodePath::kAvx2, matmul));
        }
}

TEST(SplitBackward, OfTheGptHasTheBitsOfTheWholeForEachOptionAlone) {
  const auto with = [](auto change) {
    ModelConfig config = small_gpt();
    change(config);
    expect_splits(GptCase(config, CodePath::kAvx2));
  };
  with([](ModelConfig& c) { c.norm = NormKind::kRms; });
  with([](ModelConfig& c) { c.positions = Positions::kRotary; });
  with([](ModelConfig& c) { c.activation = Activation::kSwiglu; });
  with([](ModelConfig& c) { c.activation = Activation::kRelu; });
  with([](ModelConfig& c) { c.bias = false; });
  // then the gradient of the logits may be overwritten
  with([](ModelConfig& c) { c.vocab = c.width; });
}

TEST(SplitBackward, OfTheCnnHasTheBitsOfTheWhole) {
  for (const bool autograd : {false, true})
    for (const char* norm : {"batch", "group", "layer", "none"})
      for (const bool residual : {true, false}) {
        SCOPED_TRACE(fmt::format("{} norm{}{}", norm, residual ? ", residual" : "",
                                 autograd ? ", autograd" : ""));
        Job job = small_cnn();
        job.model.depth = 2;  // shortcuts with and without a convolution
        job.model.norm = value_named<NormKind>(norm).value();
        job.model.residual = residual;
        job.model.dropout = 0.3;
        job.model.autograd = autograd;
        if (autograd && residual) continue;  // two layers in a segment
        expect_splits(CnnCase(job));
      }
}

class MlpCase : public TwinCase {
 public:
  explicit MlpCase(const Job& job) : TwinCase(make_model(job)) {
    double phase = 0;
    for (at::Tensor& unit : values)
      unit.copy_(named_case::wave({unit.numel()}, phase += 1, 0.4).add(0.5));
    for (const Border& border : model.data)
      data.push_back(border.type == at::kLong ? at::full(border.dims, 1, at::kLong)
                                              : named_case::wave(border.dims, phase += 1));
  }
};

TEST(SplitBackward, OfDenseLayersHasTheBitsOfTheWhole) {
  for (const char* norm : {"none", "batch", "layer", "rms"})
    for (const char* loss : {"cross-entropy", "mse"}) {
      SCOPED_TRACE(fmt::format("{} norm, {}", norm, loss));
      Job job = named_case::resolved(R"(
[model]
kind = "mlp"
inputs = 3
hidden = [17, 17, 5]
classes = 4
outputs = 2
dropout = 0.2
init = "he-uniform"
[data]
kind = "points"
[train]
micro_batch_size = 6
)");
      job.model.norm = value_named<NormKind>(norm).value();
      job.loss.kind = loss;
      expect_splits(MlpCase(job));
    }
}

TEST(SplitBackward, OnlyAttentionIsComputedAgainBySelectiveRecompute) {
  const GptCase gpt(small_gpt(), CodePath::kAvx2);
  for (const Block& block : gpt.model.blocks)
    for (const auto& segment : block.segments)
      EXPECT_EQ(segment->attention(), segment->name() == "attention");
}

}  // namespace
}  // namespace tutti::test
