// A TorchScript file, with a BatchNorm inside, trained by the command: any layout, the same bits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>

#include <set>

#include "support/command.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

at::Tensor numbers(const std::vector<int64_t>& dims, double phase) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  return at::arange(count, at::kFloat).mul(1.37).add(phase).sin().reshape(dims);
}

void write_module(const std::string& path) {
  torch::jit::Module module("net");
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_parameter("first", numbers({12, 16}, 1).requires_grad_(), false);
  module.register_parameter("second", numbers({8, 12}, 2).requires_grad_(), false);
  module.register_buffer("mean", at::zeros({12}));
  module.register_buffer("variance", at::ones({12}));
  module.define(R"(
def forward(self, x):
  y = torch.linear(x, self.first)
  y = torch.batch_norm(y, None, None, self.mean, self.variance, self.training, 0.1, 1e-5, False)
  return torch.linear(torch.relu(y), self.second)
)");
  module.save(path);
}

TEST(Script, ATorchScriptFileTrainsToTheSameBitsOnEveryLayout) {
  TempFolder folder;
  const std::string script = folder / "net.pt";
  write_module(script);
  std::set<std::string> hashes;
  int run = 0;
  for (const Arguments& layout :
       std::vector<Arguments>{{"--ranks", "1"},
                              {"--ranks", "2"},
                              {"--ranks", "3", "--set", "layout.transport=tcp"},
                              {"--ranks", "2", "--set", "layout.partition=hash"}}) {
    Command command(Arguments{"train", "mlp-points", "--steps", "6", "--out",
                              folder / std::to_string(run++), "--set", "model.kind=script", "--set",
                              "model.path=\"" + script + "\""} +
                    layout);
    ASSERT_EQ(command.wait(), 0) << command.err();
    hashes.insert(command.hash());
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(Script, AMissingFileIsNamed) {
  TempFolder folder;
  Command command({"train", "mlp-points", "--out", folder / "run", "--set", "model.kind=script",
                   "--set", "model.path=no.pt"});
  EXPECT_EQ(command.wait(), 1);
  EXPECT_TRUE(command.says("no.pt")) << command.err();
}

}  // namespace
}  // namespace tutti
