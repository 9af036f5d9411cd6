// The digests are pinned here, since they are the same everywhere. Whoever changes a kernel's
// arithmetic on purpose changes its digest, which the test of this file prints, and with it the
// bits of every job that uses the kernel.
#include "train/golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <list>
#include <span>

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/hash.h"
#include "base/philox.h"
#include "base/portable_math.h"
#include "base/processor.h"
#include "base/text/lists.h"
#include "comm/fold_kernels.h"
#include "data/images/augment_kernels.h"
#include "grid/order_kernels.h"
#include "optim/update_kernels.h"
#include "tensor/conv.h"
#include "tensor/kernels.h"
#include "tensor/log_softmax.h"

namespace tutti {

namespace {

/// The arrays of one kind: inputs are drawn, and all that was made is hashed in the end.
class Arrays {
 public:
  explicit Arrays(std::string_view kind) : key_{1, Purpose::kTest, hash64(kind), 0} {}

  float* floats(int64_t n) {
    std::vector<float>& x = floats_.emplace_back(static_cast<size_t>(n));
    for (float& value : x) value = 4 * philox_uniform(key_, drawn_++) - 2;
    return x.data();
  }
  /// Several of them, in order.
  template <size_t count>
  std::array<float*, count> floats(const int64_t (&sizes)[count]) {
    std::array<float*, count> all;
    std::transform(sizes, sizes + count, all.begin(), [&](int64_t n) { return floats(n); });
    return all;
  }
  const int64_t* ids(int64_t n, uint64_t below) {
    std::vector<int64_t>& x = ids_.emplace_back(static_cast<size_t>(n));
    for (int64_t& id : x) id = static_cast<int64_t>(philox_below(key_, drawn_++, below));
    return x.data();
  }
  double* doubles(int64_t n) { return doubles_.emplace_back(static_cast<size_t>(n)).data(); }

  uint64_t digest() const {
    std::string bytes;
    const auto add = [&](const auto& arrays) {
      for (const auto& x : arrays)
        bytes.append(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(x[0]));
    };
    add(floats_);
    add(doubles_);
    return hash64(bytes);
  }

 private:
  PhiloxKey key_;
  uint64_t drawn_ = 0;
  std::list<std::vector<float>> floats_;
  std::list<std::vector<int64_t>> ids_;
  std::list<std::vector<double>> doubles_;
};

// Odd sizes, so that tails are masked.
constexpr int64_t kRows = 5, kCols = 37, kSize = kRows * kCols;

void matmul(CodePath path, Arrays& x) {
  constexpr int64_t m = 19, n = 45, k = 83;
  const Matmul& kernels = tutti::kernels(path).matmul;
  std::vector<float> work(static_cast<size_t>(kernels.work(m, n, k)));
  const auto [a, b, nn, nt, tn] = x.floats({m * k, k * n, m * n, m * n, m * n});
  kernels.nn(a, b, nn, m, n, k, work.data());
  kernels.nt(a, b, nt, m, n, k, work.data());
  kernels.tn(a, b, tn, m, n, k, work.data());
}

void norm(CodePath path, Arrays& x) {
  const Kernels& k = kernels(path);
  const auto [in, gamma, beta, d] = x.floats({kSize, kCols, kCols, kSize});
  const auto [out, mean, rstd, dx, dgamma, dbeta] =
      x.floats({kSize, kRows, kRows, kSize, kCols, kCols});
  k.layer_norm(in, gamma, beta, out, mean, rstd, kRows, kCols, 1e-5f);
  k.layer_norm_backward(d, in, mean, rstd, gamma, nullptr, dx, dgamma, dbeta, kRows, kCols);
  const auto [other, root, other_dx, other_dgamma] = x.floats({kSize, kRows, kSize, kCols});
  k.rms_norm(in, gamma, other, root, kRows, kCols, 1e-5f);
  k.rms_norm_backward(d, in, root, gamma, nullptr, other_dx, other_dgamma, kRows, kCols);
}

void batch_norm(CodePath path, Arrays& x) {
  const Kernels& k = kernels(path);
  const auto [in, gamma, beta, rstd, d] = x.floats({kSize, kCols, kCols, kCols, kSize});
  const auto [mean, variance, out, dx, dgamma, dbeta] =
      x.floats({kCols, kCols, kSize, kSize, kCols, kCols});
  k.column_moments(in, mean, variance, kRows, kCols);
  k.batch_norm(in, mean, rstd, gamma, beta, out, kRows, kCols);
  k.batch_norm_backward(d, in, mean, rstd, gamma, dx, dgamma, dbeta, kRows, kCols);
}

void activation(CodePath path, Arrays& x) {
  const Kernels& k = kernels(path);
  const auto [bias, d] = x.floats({2 * kCols, kSize});
  for (const Activation kind :
       {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kSilu,
        Activation::kTanh, Activation::kSigmoid, Activation::kLeakyRelu, Activation::kElu}) {
    const auto [h, out, dh, dbias] = x.floats({kSize, kSize, kSize, kCols});
    k.bias_activation(h, bias, out, kRows, kCols, kind);
    k.activation_backward(d, h, dh, dbias, kRows, kCols, kind);
  }
  const auto [h, out, dh, dbias] = x.floats({2 * kSize, kSize, 2 * kSize, 2 * kCols});
  k.bias_swiglu(h, bias, out, kRows, kCols);
  k.swiglu_backward(d, h, dh, dbias, kRows, kCols);
}

void attention(CodePath path, Arrays& x) {
  const Kernels& k = kernels(path);
  const AttentionShape shape{1, 37, 2, 22, 1};
  const int64_t length = shape.length, columns = shape.columns(), width = shape.heads * shape.dim;
  const RotaryShape turned{1, length, shape.heads + shape.kv_heads, shape.dim, columns};
  const std::vector<float> angles = rotary_table(length, shape.dim, 10000);
  std::vector<float> work(static_cast<size_t>(k.attention_work(shape)));
  const auto [qkv, bias, out, lse] =
      x.floats({length * columns, columns, length * width, length * shape.heads});
  k.rotary(qkv, bias, angles.data(), turned);
  k.attention(qkv, bias, out, lse, work.data(), shape);
  const auto [d, dqkv, dbias] = x.floats({length * width, length * columns, columns});
  k.attention_backward(d, qkv, out, lse, dqkv, dbias, work.data(), shape);
  k.rotary_backward(dqkv, angles.data(), dbias, turned);
}

void dropout(CodePath path, Arrays& x) {
  const Kernels& k = kernels(path);
  const Dropout mask{.rate = 0.3, .seed = 7, .step = 3, .block = 2, .site = 1};
  const auto [y, bias, in, out, back, sums, all] =
      x.floats({kSize, kCols, kSize, kSize, kSize, kCols, kCols});
  k.bias_residual(y, bias, in, out, kRows, kCols, &mask);
  k.dropout_backward(y, back, sums, kRows, kCols, &mask);
  k.column_sums(y, all, kRows, kCols);
}

void embedding(CodePath path, Arrays& x) {
  constexpr int64_t kWords = 7;
  const Kernels& k = kernels(path);
  const int64_t* tokens = x.ids(kRows, kWords);
  const auto [table, position, out, d, dtable, dposition] =
      x.floats({kWords * kCols, kSize, kSize, kSize, kWords * kCols, kSize});
  k.embed(tokens, table, position, out, kRows, kRows, kCols, nullptr);
  k.embed_backward(tokens, d, dtable, dposition, kRows, kRows, kWords, kCols, nullptr);
}

void loss(CodePath path, Arrays& x) {
  const Kernels& k = kernels(path);
  const int64_t* targets = x.ids(kRows, kCols);
  const auto [logits, lse, gradient, statistics] = x.floats({kSize, kRows, kSize, 3 * kRows});
  k.cross_entropy(logits, targets, lse, x.doubles(2), kRows, kCols);
  k.cross_entropy_backward(logits, targets, lse, nullptr, gradient, kRows, kCols);
  k.vocabulary.statistics(logits, targets, statistics, kRows, 0, kCols);

#define TUTTI_LOG_SOFTMAX(isa) &isa::log_softmax
  static constexpr const LogSoftmax* kLogSoftmax[] = TUTTI_TABLE(TUTTI_LOG_SOFTMAX);
#undef TUTTI_LOG_SOFTMAX
  const auto [log_p, d, back] = x.floats({kSize, kSize, kSize});
  on_path(kLogSoftmax, path)->forward(logits, 2, log_p, kRows, kCols);
  on_path(kLogSoftmax, path)->backward(d, log_p, back, kRows, kCols);
}

void convolution(CodePath path, Arrays& x) {
  const ConvKernels& k = conv_kernels(path);
  const ConvShape s{5, 6, 3, 37};
  const auto [padded, weight, d] = x.floats({s.padded_inputs(), s.weights(), s.padded_outputs()});
  const auto [panels, back, gradient] = x.floats({s.panels(), s.backward_panels(), s.panels()});
  const auto [out, dx, dweight] = x.floats({s.outputs(), s.inputs(), s.weights()});
  k.pack_weight(weight, panels, s);
  k.pack_weight_backward(weight, back, s);
  k.forward(padded, panels, out, s);
  k.input_gradient(d, back, dx, s, false);
  std::fill_n(gradient, s.panels(), 0.0f);  // nobody writes what pads a panel
  k.weight_gradient(padded, d, gradient, s, true);
  k.unpack_weight(gradient, dweight, s);
}

void image(CodePath path, Arrays& x) {
  constexpr int64_t kHeight = 4, kWidth = 6, kPixels = kHeight * kWidth,
                    kPadded = (kHeight + 2) * (kWidth + 2);
  const ConvKernels& k = conv_kernels(path);
  const auto [y, d, scale, shift, a, b, c] =
      x.floats({kPixels * kCols, kPixels * kCols, kCols, kCols, kCols, kCols, kCols});
  const auto [mean, squares, out, joined, sums, back, all] =
      x.floats({kCols, kCols, kPixels * kCols, kPixels * kCols, 2 * kCols, kPadded * kCols, kCols});
  const Affine affine{scale, shift};
  k.moments(y, mean, squares, kPixels, kCols);
  const NormGradient gradient{mean, a, b, c};
  k.join(y, affine, {}, Activation::kRelu, out, kPixels, kCols);
  k.join_backward(d, out, y, affine, mean, {}, Activation::kRelu, joined, sums, kPixels, kCols);
  k.norm_backward(d, y, gradient, back, kHeight, kWidth, kCols);
  for (const Pool pool : {Pool::kMax, Pool::kAverage}) {
    const auto [pooled, spread] = x.floats({kPixels / 4 * kCols, kPadded * kCols});
    k.pool(y, affine, Activation::kGelu, pool, pooled, kHeight, kWidth, kCols);
    k.pool_backward(d, y, affine, gradient, Activation::kGelu, pool, spread, kHeight, kWidth,
                    kCols);
  }
  k.average(y, all, kPixels, kCols);
}

void optimizer(CodePath path, Arrays& x) {
  const UpdateKernels k = update_kernels(path);
  const GradientScalars gradient{0.5f, 0.9f};
  const PlainScalars plain{gradient, 0.01f, 0.1f, 0.9f, 0.95f, 0.05f, 1e-8f};
  const MomentScalars moments{gradient, 0.01f, 0.9f, 0.1f, 0.95f, 0.05f, 1e-8f, 1.1f, 1.2f, 0.01f};
  const float* g = x.floats(kSize);
  // Parameters, a slot of any sign, and one of squares.
  const auto values = [&] {
    const std::array<float*, 3> all = x.floats({kSize, kSize, kSize});
    for (int64_t i = 0; i < kSize; ++i) all[2][i] *= all[2][i];
    return all;
  };
  const auto sgd = values(), adagrad = values(), rmsprop = values(), adam = values(),
             adamw = values(), lion = values(), lamb = values();
  k.sgd(sgd[0], g, sgd[1], kSize, plain, Momentum::kNext, true);
  k.adagrad(adagrad[0], g, adagrad[2], kSize, plain);
  k.rmsprop(rmsprop[0], g, rmsprop[2], rmsprop[1], kSize, plain);
  k.adam(adam[0], g, adam[1], adam[2], kSize, moments);
  k.adamw(adamw[0], g, adamw[1], adamw[2], kSize, moments);
  k.lion(lion[0], g, lion[1], kSize, moments);
  const ChunkSquares squares = k.lamb_measure(lamb[0], g, lamb[1], lamb[2], kSize, moments);
  double* kept = x.doubles(2);
  kept[0] = squares.parameter, kept[1] = squares.direction;
  k.lamb_update(lamb[0], lamb[1], lamb[2], kSize, moments);
}

void sum(CodePath path, Arrays& x) {
  static constexpr decltype(&isa_portable::fold_shape) kFold[] = TUTTI_TABLE_OF(fold_shape);
  static constexpr decltype(&isa_portable::sum_squares) kSquares[] = TUTTI_TABLE_OF(sum_squares);
  const auto [a, b, c, d, out] = x.floats({kSize, kSize, kSize, kSize, kSize});
  const float* terms[] = {a, b, c, d};
  on_path(kFold, path)(TreeShape::kBalanced4, out, terms, kSize);
  *x.doubles(1) = on_path(kSquares, path)(a, kSize);
}

void order(CodePath path, Arrays& x) {
  static constexpr decltype(&isa_portable::feistel) kFeistel[] = TUTTI_TABLE_OF(feistel);
  std::vector<uint64_t> places(kFeistelLanes);
  for (size_t i = 0; i < places.size(); ++i) places[i] = i * 977;
  on_path(kFeistel, path)(philox_stream({5, Purpose::kTest, 9, 0}), 10, places.data(),
                          kFeistelLanes);
  std::copy(places.begin(), places.end(), x.doubles(kFeistelLanes));
}

void augmentation(CodePath path, Arrays& x) {
  static constexpr decltype(&isa_portable::turn) kTurn[] = TUTTI_TABLE_OF(turn);
  static constexpr decltype(&isa_portable::contrast) kContrast[] = TUTTI_TABLE_OF(contrast);
  static constexpr decltype(&isa_portable::noise) kNoise[] = TUTTI_TABLE_OF(noise);
  const ImageShape shape{2, 7, 9};
  const int64_t n = shape.values();
  std::vector<float> scratch(static_cast<size_t>(turn_scratch(shape)));
  const auto [turned, contrasted, noisy] = x.floats({n, n, n});
  on_path(kTurn, path)(turned, shape, {0.9f, 0.3f}, scratch.data());
  on_path(kContrast, path)(contrasted, n, 1.1f);
  on_path(kNoise, path)(noisy, n, philox_stream({1, Purpose::kTest, 2, 3}), 0.3f);
}

// Of the compiler's own code, which is the same on every path.
void elementary(CodePath, Arrays& x) {
  double* y = x.doubles(7 * 64);
  for (int i = 0; i < 64; ++i, y += 7) {
    const double t = (i - 31.5) * 0.37;
    y[0] = portable::exp(t), y[1] = portable::log(t * t), y[2] = portable::log1p(t * t);
    y[3] = portable::pow(t * t, 0.7), y[4] = portable::sin(t), y[5] = portable::cos(t);
    y[6] = philox_normal({3, Purpose::kTest, 1, 0}, static_cast<uint64_t>(i));
  }
}

struct Kind {
  const char* name;
  void (*run)(CodePath path, Arrays& x);
  uint64_t expected;
};
constexpr Kind kKinds[] = {
    {"matmul", matmul, 0x7b3232ee9b98dcce},
    {"norm", norm, 0x95efec6af603d138},
    {"batch norm", batch_norm, 0x950e310f05baed30},
    {"activation", activation, 0x66c29618a3627a48},
    {"attention", attention, 0x8ea3340e8da3319c},
    {"dropout", dropout, 0xa477db96c2ae252c},
    {"embedding", embedding, 0xf43c8774f861d101},
    {"loss", loss, 0x9d8654f6817e6801},
    {"convolution", convolution, 0x86167be76e33020b},
    {"image", image, 0x07178a1954dc11e9},
    {"optimizer", optimizer, 0x858963c2e2e53be1},
    {"sum", sum, 0xae41ddcf50931799},
    {"order", order, 0xb461a554829d0f89},
    {"augmentation", augmentation, 0xbf7d453669c1365f},
    {"elementary function", elementary, 0x516da1c67868189e},
};

}  // namespace

std::vector<Golden> golden(CodePath path) {
  set_fp_mode();
  std::vector<Golden> all;
  for (const Kind& kind : kKinds) {
    Arrays arrays(kind.name);
    kind.run(path, arrays);
    all.push_back({kind.name, arrays.digest(), kind.expected});
  }
  return all;
}

void check_golden(CodePath path) {
  std::vector<std::string> broken;
  for (const Golden& one : golden(path))
    if (one.digest != one.expected) broken.push_back(one.kernels);
  if (!broken.empty())
    throw Error(fmt::format(
        "this host's {} kernels ({}) do not give the bits that they give everywhere: its processor "
        "is broken, or they were compiled wrongly",
        listed(broken, "and"), name_of(path)));
}

}  // namespace tutti
