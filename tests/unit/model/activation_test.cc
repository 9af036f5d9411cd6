#include "model/core/activation.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"

namespace tutti {

// Against their formulas in double; float32 operators are within a few units of the last place of
// values below 8.
TEST(Activation, EveryNameIsItsFormula) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const std::map<std::string, std::function<double(double)>> formulas = {
      {"gelu", [](double x) { return x / 2 * (1 + std::erf(x / std::sqrt(2.0))); }},
      {"gelu-tanh",
       [](double x) {
         return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
       }},
      {"relu", [](double x) { return x > 0 ? x : 0; }},
      {"silu", [&](double x) { return x * sigmoid(x); }},
      {"tanh", [](double x) { return std::tanh(x); }},
      {"sigmoid", [&](double x) { return sigmoid(x); }},
      {"leaky-relu", [](double x) { return x > 0 ? x : 0.01 * x; }},
      {"elu", [](double x) { return x > 0 ? x : std::exp(x) - 1; }}};
  const at::Tensor x = at::linspace(-6, 6, 49);
  for (const auto& [name, formula] : formulas) {
    at::Tensor expected = x.clone();
    for (int i = 0; i < 49; ++i) expected[i] = formula(x[i].item<float>());
    EXPECT_TRUE(
        at::allclose(activate(value_named<Activation>(name).value(), x), expected, 1e-5, 1e-6))
        << name;
  }
}

TEST(Activation, TheGatedLayerIsRefusedAsOneOfAnElement) {
  EXPECT_THROW(activate(Activation::kSwiglu, at::linspace(-1, 1, 3)), Error);
}

}  // namespace tutti
