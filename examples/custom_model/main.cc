// A model of one's own from torch::nn modules, trained on any number of ranks with the same bits:
//   custom_model --ranks 2        custom_model --ranks 1 --steps 50 --set train.seed=7
#include <tutti/nn.h>
#include <tutti/tutti.h>

namespace nn = torch::nn;

// A residual layer, written as any torch module.
struct Layer : nn::Module {
  explicit Layer(int64_t width)
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        up(register_module("up", nn::Linear(width, 4 * width))),
        down(register_module("down", nn::Linear(4 * width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }
  nn::LayerNorm norm;
  nn::Linear up, down;
};

// A block per layer: blocks are what gradients are reduced by while the ones before them still run.
tutti::Model make_model(const tutti::Job& job) {
  const int64_t batch = job.train.micro_batch_size, width = 64;
  const tutti::Border features{"features", {batch, job.model.inputs}},
      targets{"targets", {batch}, at::kLong};
  const tutti::Border x{"x", {batch, width}}, logits{"logits", {batch, job.model.classes}};
  tutti::Model model;
  model.data = {features, targets};
  model.blocks.push_back(
      tutti::adapt("stem", nn::Linear(job.model.inputs, width), {features}, {x}));
  for (int i = 0; i < 3; ++i)
    model.blocks.push_back(
        tutti::adapt("layers." + std::to_string(i), std::make_shared<Layer>(width), {x}, {x}));
  model.blocks.push_back(tutti::adapt("head", nn::Linear(width, job.model.classes), {x}, {logits}));
  model.blocks.push_back(tutti::cross_entropy_block("loss", logits, targets));
  return model;
}

int main(int argc, char** argv) {
  return tutti::train_main(argc, argv, make_model, R"(
    base = "mlp-points"
    [model]
    kind = "custom"
    [train]
    steps = 200
  )");
}
