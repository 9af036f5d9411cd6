// How exact the kernels are, in units of the last place: each against ATen in float64, next to what
// ATen in float32 makes of the same inputs. docs/processors.md prints the limits.
//
// An activation is measured by the last place of its own value, or of 1/64 where that is smaller;
// what is a sum, by the last place of the largest value of its array.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernel_case.h"
#include "model/core/activation.h"
#include "tensor/conv.h"

namespace tutti::test {
namespace {

using Tensors = std::vector<at::Tensor>;

enum class Unit { kOwn, kLargest };

double last_place(double x) { return std::ldexp(1.0, std::ilogb(x) - 23); }

/// The largest error of an array in units of the last place.
double error(const float* got, const at::Tensor& exact, Unit unit) {
  const at::Tensor want = exact.detach().contiguous();
  const double* w = want.const_data_ptr<double>();
  double top = 0;
  for (int64_t i = 0; i < want.numel(); ++i) top = std::max(top, std::abs(w[i]));
  double worst = 0;
  for (int64_t i = 0; i < want.numel(); ++i) {
    const double of = unit == Unit::kLargest ? top : std::max(std::abs(w[i]), 1.0 / 64);
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - w[i]) / last_place(of));
  }
  return worst;
}

/// One kind of kernel: what it computes of its inputs, and the limits of its results' errors.
struct Kind {
  const char* name;
  Unit unit;
  std::vector<Floats> inputs;
  std::vector<std::vector<int64_t>> dims;
  std::function<Tensors(const Tensors& inputs)> aten;  ///< under autograd
  std::function<std::vector<Floats>(const Kernels& k, const std::vector<Floats>& inputs)> ours;
  std::vector<double> limits;
};

Tensors leaves(const Kind& kind, at::ScalarType type) {
  Tensors all;
  for (size_t i = 0; i < kind.inputs.size(); ++i)
    all.push_back(leaf(kind.inputs[i], kind.dims[i]).detach().to(type).requires_grad_(true));
  return all;
}

void check(const Kind& kind) {
  set_fp_mode();
  at::set_num_threads(1);
  const Tensors exact = kind.aten(leaves(kind, at::kDouble)),
                theirs = kind.aten(leaves(kind, at::kFloat));
  const std::vector<Floats> ours = kind.ours(kernels(fastest_path()), kind.inputs);
  ASSERT_EQ(ours.size(), kind.limits.size());
  ASSERT_EQ(exact.size(), kind.limits.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    const double mine = error(ours[i].data(), exact[i], kind.unit),
                 other = error(theirs[i].contiguous().const_data_ptr<float>(), exact[i], kind.unit);
    std::printf("%-22s result %zu: %6.2f ulp, ATen %6.2f, limit %4.1f\n", kind.name, i, mine, other,
                kind.limits[i]);
    EXPECT_LE(mine, kind.limits[i]) << kind.name << ", result " << i;
  }
}

Tensors with_gradients(const at::Tensor& y, const at::Tensor& dy, const Tensors& of) {
  Tensors all = {y.detach()};
  for (const at::Tensor& gradient : torch::autograd::grad({y}, of, {dy.detach()}))
    all.push_back(gradient);
  return all;
}

Floats sweep() {
  Floats x;
  for (double v = -9; v <= 9; v += 0.00037) x.push_back(static_cast<float>(v));
  return x;
}

TEST(Accuracy, OfActivations) {
  struct Case {
    const char* name;
    Activation kind;
    std::vector<double> limits;  // of the value and the derivative
  };
  const Case cases[] = {
      {"gelu", Activation::kGelu, {8, 60}},      {"gelu-tanh", Activation::kGeluTanh, {9, 32}},
      {"silu", Activation::kSilu, {3, 22}},      {"tanh", Activation::kTanh, {2, 3}},
      {"sigmoid", Activation::kSigmoid, {3, 5}}, {"elu", Activation::kElu, {2, 2}}};
  const Floats x = sweep();
  const auto n = static_cast<int64_t>(x.size());
  for (const Case& c : cases)
    check({c.name,
           Unit::kOwn,
           {x},
           {{n}},
           [&](const Tensors& in) {
             const at::Tensor y = activate(c.kind, in[0]);
             return with_gradients(y, at::ones({n}, y.options()), in);
           },
           [&](const Kernels& k, const std::vector<Floats>& in) {
             Floats left = in[0], y(in[0].size()), d(in[0].size()), sums(in[0].size());
             const Floats ones(in[0].size(), 1.0f);
             k.bias_activation(left.data(), nullptr, y.data(), 1, n, c.kind);
             k.activation_backward(ones.data(), left.data(), d.data(), sums.data(), 1, n, c.kind);
             return std::vector<Floats>{y, d};
           },
           c.limits});
}

TEST(Accuracy, OfNorms) {
  const int64_t rows = 64, cols = 384, n = rows * cols;
  const Floats x = normals(n, 1, 3), gamma = normals(cols, 2), beta = normals(cols, 3),
               dy = normals(n, 4);
  const std::vector<Floats> in = {x, gamma, beta, dy};
  const std::vector<std::vector<int64_t>> dims = {{rows, cols}, {cols}, {cols}, {rows, cols}};
  check({"layer norm",
         Unit::kLargest,
         in,
         dims,
         [&](const Tensors& t) {
           return with_gradients(at::layer_norm(t[0], {cols}, t[1], t[2], 1e-5), t[3],
                                 {t[0], t[1], t[2]});
         },
         [&](const Kernels& k, const std::vector<Floats>& f) {
           Floats y(n), mean(rows), rstd(rows), dx(n), dgamma(cols), dbeta(cols);
           k.layer_norm(f[0].data(), f[1].data(), f[2].data(), y.data(), mean.data(), rstd.data(),
                        rows, cols, 1e-5f);
           k.layer_norm_backward(f[3].data(), f[0].data(), mean.data(), rstd.data(), f[1].data(),
                                 nullptr, dx.data(), dgamma.data(), dbeta.data(), rows, cols);
           return std::vector<Floats>{y, dx, dgamma, dbeta};
         },
         {2, 2, 4, 4}});
  check({"RMS norm",
         Unit::kLargest,
         {x, gamma, dy},
         {{rows, cols}, {cols}, {rows, cols}},
         [&](const Tensors& t) {
           return with_gradients(at::rms_norm(t[0], {cols}, t[1], 1e-5), t[2], {t[0], t[1]});
         },
         [&](const Kernels& k, const std::vector<Floats>& f) {
           Floats y(n), rstd(rows), dx(n), dgamma(cols);
           k.rms_norm(f[0].data(), f[1].data(), y.data(), rstd.data(), rows, cols, 1e-5f);
           k.rms_norm_backward(f[2].data(), f[0].data(), rstd.data(), f[1].data(), nullptr,
                               dx.data(), dgamma.data(), rows, cols);
           return std::vector<Floats>{y, dx, dgamma};
         },
         {2, 2, 5}});
  check({"batch norm",
         Unit::kLargest,
         in,
         dims,
         [&](const Tensors& t) {
           return with_gradients(at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false),
                                 t[3], {t[0], t[1], t[2]});
         },
         [&](const Kernels& k, const std::vector<Floats>& f) {
           Floats y(n), mean(cols), variance(cols), dx(n), dgamma(cols), dbeta(cols);
           k.column_moments(f[0].data(), mean.data(), variance.data(), rows, cols);
           Floats rstd = variance;
           for (float& v : rstd) v = 1 / std::sqrt(v + 1e-5f);
           k.batch_norm(f[0].data(), mean.data(), rstd.data(), f[1].data(), f[2].data(), y.data(),
                        rows, cols);
           k.batch_norm_backward(f[3].data(), f[0].data(), mean.data(), rstd.data(), f[1].data(),
                                 dx.data(), dgamma.data(), dbeta.data(), rows, cols);
           return std::vector<Floats>{y, dx, dgamma, dbeta};
         },
         {2, 2, 2, 2}});
}

TEST(Accuracy, OfTheLoss) {
  const int64_t rows = 64, cols = 1000, n = rows * cols;
  std::vector<int64_t> targets(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) targets[r] = r * 37 % cols;
  const at::Tensor ids = at::from_blob(targets.data(), {rows}, at::kLong);
  check({"cross-entropy",
         Unit::kLargest,
         {normals(n, 1, 3)},
         {{rows, cols}},
         [&](const Tensors& t) {
           const at::Tensor loss = at::cross_entropy_loss(t[0], ids, {}, at::Reduction::Sum);
           return Tensors{with_gradients(loss, at::ones({}, loss.options()), t)[1]};
         },
         [&](const Kernels& k, const std::vector<Floats>& f) {
           Floats lse(rows), d(n);
           double result[2];
           k.cross_entropy(f[0].data(), targets.data(), lse.data(), result, rows, cols);
           k.cross_entropy_backward(f[0].data(), targets.data(), lse.data(), nullptr, d.data(),
                                    rows, cols);
           return std::vector<Floats>{d};
         },
         {8}});
}

TEST(Accuracy, OfAttention) {
  const AttentionShape s{1, 256, 2, 64};
  const int64_t width = s.heads * s.dim;
  check({"attention",
         Unit::kLargest,
         {normals(s.length * s.columns(), 1), normals(s.length * width, 3)},
         {{1, s.length, 3 * s.heads, s.dim}, {1, s.length, s.heads, s.dim}},
         [&](const Tensors& t) {
           const at::Tensor x = t[0].transpose(1, 2);
           const auto heads = [&](int64_t i) { return x.narrow(1, i * s.heads, s.heads); };
           const at::Tensor hidden = at::ones({s.length, s.length}, at::kBool).triu(1);
           const at::Tensor scores = (at::matmul(heads(0), heads(1).transpose(-1, -2)) * (1.0 / 8))
                                         .masked_fill(hidden, -INFINITY);
           return with_gradients(at::matmul(at::softmax(scores, -1), heads(2)).transpose(1, 2),
                                 t[1], {t[0]});
         },
         [&](const Kernels& k, const std::vector<Floats>& f) {
           Floats qkv = f[0], out(s.length * width), lse(s.length * s.heads), d(qkv.size()),
                  dbias(s.columns()), work(static_cast<size_t>(k.attention_work(s)));
           const Floats bias(dbias.size(), 0.0f);
           k.attention(qkv.data(), bias.data(), out.data(), lse.data(), work.data(), s);
           k.attention_backward(f[1].data(), qkv.data(), out.data(), lse.data(), d.data(),
                                dbias.data(), work.data(), s);
           return std::vector<Floats>{out, d};
         },
         {3, 6}});
}

TEST(Accuracy, OfMatmuls) {
  const int64_t m = 256, n = 768, k = 192;
  check({"matmul",
         Unit::kLargest,
         {normals(m * k, 1), normals(n * k, 2), normals(m * n, 3)},
         {{m, k}, {n, k}, {m, n}},
         [&](const Tensors& t) {
           return with_gradients(at::matmul(t[0], t[1].t()), t[2], {t[0], t[1]});
         },
         [&](const Kernels& table, const std::vector<Floats>& f) {
           Floats y(m * n), dx(m * k), dw(n * k),
               work(static_cast<size_t>(table.matmul.layer_work(m, k, n)));
           table.matmul.nt(f[0].data(), f[1].data(), y.data(), m, n, k, work.data());
           table.matmul.nn(f[2].data(), f[1].data(), dx.data(), m, k, n, work.data());
           table.matmul.tn(f[2].data(), f[0].data(), dw.data(), n, k, m, work.data());
           return std::vector<Floats>{y, dx, dw};
         },
         {8, 26, 8}});
}

TEST(Accuracy, OfConvolutions) {
  const ConvShape s{14, 14, 64, 64};
  check({"convolution",
         Unit::kLargest,
         {normals(s.inputs(), 1), normals(s.weights(), 2, 0.1f)},
         {{s.height, s.width, s.in}, {s.out, s.in, 3, 3}},
         [&](const Tensors& t) {
           const at::Tensor y = at::conv2d(t[0].permute({2, 0, 1}).unsqueeze(0), t[1], {}, 1, 1);
           return Tensors{y.squeeze(0).permute({1, 2, 0}).detach()};
         },
         [&](const Kernels&, const std::vector<Floats>& f) {
           const ConvKernels& k = conv_kernels(fastest_path());
           Floats padded(s.padded_inputs()), panels(s.panels()), y(s.outputs());
           k.pack(f[0].data(), nullptr, Activation::kRelu, padded.data(), s.height, s.width, s.in);
           k.pack_weight(f[1].data(), panels.data(), s);
           k.forward(padded.data(), panels.data(), y.data(), s);
           return std::vector<Floats>{y};
         },
         {12}});
}

}  // namespace
}  // namespace tutti::test
