// Random calls of every kind of kernel, over shapes with tails and values that hurt: zeros of both
// signs, denormals, huge and tiny numbers, infinities, NaN. Every code path must make the same of
// them. A trial is a function of its seed; neither torch nor GoogleTest is needed, so that programs
// for other processors can run them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "base/processor.h"
#include "comm/fold_kernels.h"
#include "optim/update_kernels.h"
#include "tensor/conv.h"
#include "tensor/kernels.h"
#include "tensor/log_softmax.h"

namespace tutti::test {

using Floats = std::vector<float>;

/// Sizes and values of one trial, the same for every table.
class Trial {
 public:
  explicit Trial(uint64_t seed) : engine_(seed), hostile_(below(4) == 0) {}

  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  /// At least 1, and often next to a whole number of vectors.
  int64_t size(int64_t most) {
    const int64_t n =
        below(2) == 0 ? 1 + below(most) : 16 * (1 + below(most / 16 + 1)) + below(3) - 1;
    return std::clamp<int64_t>(n, 1, most);
  }
  float value() {
    if (hostile_ && below(16) == 0) {
      constexpr float kHostile[] = {0.0f,  -0.0f,  1e-40f, -1e-42f, 1.2e-38f, -1.2e-38f,
                                    3e38f, -3e38f, 1e-30f, 1e30f,   INFINITY, -INFINITY,
                                    NAN,   88.5f,  -87.4f, 1.0f,    -1.0f,    16777217.0f};
      return kHostile[below(std::size(kHostile))];
    }
    const auto unit = static_cast<float>(static_cast<int32_t>(engine_())) * 0x1p-31f;
    return unit * (below(8) == 0 ? 30.0f : 2.0f);
  }
  Floats values(int64_t n) {
    Floats x(static_cast<size_t>(n));
    for (float& v : x) v = value();
    return x;
  }
  /// Ids below n, some of them negative: rows without a target.
  std::vector<int64_t> ids(int64_t count, int64_t n, bool all = false) {
    std::vector<int64_t> x(static_cast<size_t>(count));
    for (int64_t& id : x) id = !all && below(5) == 0 ? -1 : below(n);
    return x;
  }

 private:
  std::mt19937_64 engine_;
  bool hostile_;
};

/// What a trial has computed: all arrays one after the other.
class Results {
 public:
  float* floats(int64_t n) {
    arrays_.emplace_back(static_cast<size_t>(n), 7.0f);
    return arrays_.back().data();
  }
  float* keep(Floats x) {
    arrays_.push_back(std::move(x));
    return arrays_.back().data();
  }
  double* doubles(int64_t n) { return reinterpret_cast<double*>(floats(2 * n)); }
  const std::list<Floats>& arrays() const { return arrays_; }

 private:
  std::list<Floats> arrays_;
};

/// Where two trials differ first; empty if nowhere.
inline std::string difference(const Results& a, const Results& b) {
  size_t array = 0;
  for (auto x = a.arrays().begin(), y = b.arrays().begin(); x != a.arrays().end(); ++x, ++y) {
    for (size_t i = 0; i < x->size(); ++i) {
      const auto u = std::bit_cast<uint32_t>((*x)[i]), v = std::bit_cast<uint32_t>((*y)[i]);
      if (u != v && !(std::isnan((*x)[i]) && std::isnan((*y)[i])))
        return fmt::format("element {} of {} of array {}: {:08x}, {:08x}", i, x->size(), array, u,
                           v);
    }
    ++array;
  }
  return "";
}

/// Of all arrays; any NaN counts for any other.
inline uint64_t digest(const Results& results) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const Floats& array : results.arrays())
    for (const float x : array)
      h = (h ^ (std::isnan(x) ? 0x7FC00000u : std::bit_cast<uint32_t>(x))) * 0x100000001b3u;
  return h;
}

namespace trials {

inline void norms(CodePath path, Trial& draw, Results& to) {
  const Kernels& k = kernels(path);
  const int64_t rows = 1 + draw.below(4), cols = draw.size(200), n = rows * cols;
  const Floats x = draw.values(n), gamma = draw.values(cols), beta = draw.values(cols),
               dy = draw.values(n), residual = draw.values(n);
  const bool adds = draw.below(2) == 0;
  float *mean = to.floats(rows), *rstd = to.floats(rows), *rms = to.floats(rows);
  k.layer_norm(x.data(), gamma.data(), adds ? beta.data() : nullptr, to.floats(n), mean, rstd, rows,
               cols, 1e-5f);
  k.layer_norm_backward(dy.data(), x.data(), mean, rstd, gamma.data(),
                        adds ? residual.data() : nullptr, to.floats(n), to.floats(cols),
                        adds ? to.floats(cols) : nullptr, rows, cols);
  k.rms_norm(x.data(), gamma.data(), to.floats(n), rms, rows, cols, 1e-5f);
  k.rms_norm_backward(dy.data(), x.data(), rms, gamma.data(), adds ? residual.data() : nullptr,
                      to.floats(n), to.floats(cols), rows, cols);
}

inline void batch_norms(CodePath path, Trial& draw, Results& to) {
  const Kernels& k = kernels(path);
  const int64_t rows = 1 + draw.below(80), cols = draw.size(100), n = rows * cols;
  const Floats x = draw.values(n), gamma = draw.values(cols), beta = draw.values(cols),
               dy = draw.values(n);
  float *mean = to.floats(cols), *variance = to.floats(cols);
  k.column_moments(x.data(), mean, variance, rows, cols);
  k.batch_norm(x.data(), mean, variance, gamma.data(), beta.data(), to.floats(n), rows, cols);
  k.batch_norm_backward(dy.data(), x.data(), mean, variance, gamma.data(), to.floats(n),
                        to.floats(cols), to.floats(cols), rows, cols);
}

inline void losses(CodePath path, Trial& draw, Results& to) {
  const Kernels& k = kernels(path);
  const int64_t rows = 1 + draw.below(4), cols = draw.size(200), n = rows * cols;
  const Floats logits = draw.values(n);
  const std::vector<int64_t> targets = draw.ids(rows, cols);
  float* lse = to.floats(rows);
  k.cross_entropy(logits.data(), targets.data(), lse, to.doubles(2), rows, cols);
  k.cross_entropy_backward(logits.data(), targets.data(), lse, nullptr, to.floats(n), rows, cols);
}

inline void log_softmaxes(CodePath path, Trial& draw, Results& to) {
#define TUTTI_OF(isa) &isa::log_softmax
  static constexpr const LogSoftmax* kAll[] = TUTTI_TABLE(TUTTI_OF);
#undef TUTTI_OF
  const LogSoftmax& k = *on_path(kAll, path);
  const int64_t rows = 1 + draw.below(4), cols = draw.size(200), n = rows * cols;
  const Floats x = draw.values(n), g = draw.values(n);
  float* log_p = to.floats(n);
  k.forward(x.data(), draw.below(2) == 0 ? 1.0f : 3.0f, log_p, rows, cols);
  k.backward(g.data(), log_p, to.floats(n), rows, cols);
}

inline void vocabularies(CodePath path, Trial& draw, Results& to) {
  const auto& k = kernels(path).vocabulary;
  const int64_t rows = 1 + draw.below(4), count = draw.size(100), n = rows * count;
  const std::vector<int64_t> targets = draw.ids(rows, 2 * count);
  float* statistics = to.floats(2 * rows * 3);
  const Floats logits = draw.values(2 * n);
  for (int64_t slice : {0, 1})
    k.statistics(logits.data() + slice * n, targets.data(), statistics + slice * rows * 3, rows,
                 slice * count, count);
  float* lse = to.floats(rows);
  k.cross_entropy(statistics, targets.data(), lse, to.doubles(2), rows, 2);
  k.cross_entropy_backward(logits.data(), targets.data(), lse, nullptr, to.floats(n), rows, 0,
                           count);
}

inline void attentions(CodePath path, Trial& draw, Results& to) {
  const Kernels& k = kernels(path);
  const int64_t kv = 1 + draw.below(2);
  const AttentionShape s{1, draw.size(110), kv * (1 + draw.below(2)), 2 * draw.size(40), kv};
  const int64_t rows = s.batch * s.length, width = s.heads * s.dim;
  float* qkv = to.keep(draw.values(rows * s.columns()));
  const Floats bias = draw.values(s.columns()), dout = draw.values(rows * width);
  Floats work(static_cast<size_t>(k.attention_work(s)), 7.0f);
  float *out = to.floats(rows * width), *lse = to.floats(rows * s.heads);
  k.attention(qkv, bias.data(), out, lse, work.data(), s);
  k.attention_backward(dout.data(), qkv, out, lse, to.floats(rows * s.columns()),
                       to.floats(s.columns()), work.data(), s);
}

inline void rotaries(CodePath path, Trial& draw, Results& to) {
  const Kernels& k = kernels(path);
  const int64_t heads = 1 + draw.below(3), dim = 2 * draw.size(40);
  const RotaryShape s{1 + draw.below(2), draw.size(20), heads, dim, heads * dim + draw.below(40)};
  const int64_t n = s.batch * s.length * s.columns;
  const Floats bias = draw.values(s.columns);
  const std::vector<float> table = rotary_table(s.length, dim, 10000);
  k.rotary(to.keep(draw.values(n)), bias.data(), table.data(), s);
  k.rotary_backward(to.keep(draw.values(n)), table.data(), to.floats(s.columns), s);
}

inline void activations(CodePath path, Trial& draw, Results& to) {
  const Kernels& k = kernels(path);
  const int64_t rows = 1 + draw.below(4), cols = draw.size(100), n = rows * cols;
  constexpr Activation kAll[] = {
      Activation::kGelu, Activation::kGeluTanh, Activation::kRelu,      Activation::kSilu,
      Activation::kTanh, Activation::kSigmoid,  Activation::kLeakyRelu, Activation::kElu};
  const Activation kind = kAll[draw.below(std::size(kAll))];
  const Floats bias = draw.values(2 * cols), dg = draw.values(n);
  float* h = to.keep(draw.values(n));
  k.bias_activation(h, bias.data(), to.floats(n), rows, cols, kind);
  k.activation_backward(dg.data(), h, to.floats(n), to.floats(cols), rows, cols, kind);

  float* gated = to.keep(draw.values(2 * n));
  k.bias_swiglu(gated, bias.data(), to.floats(n), rows, cols);
  k.swiglu_backward(dg.data(), gated, to.floats(2 * n), to.floats(2 * cols), rows, cols);
}

inline void residuals(CodePath path, Trial& draw, Results& to) {
  const Kernels& k = kernels(path);
  const int64_t rows = 1 + draw.below(6), cols = draw.size(100), n = rows * cols;
  const Dropout dropout{.rate = draw.below(2) == 0 ? 0.0 : 0.3,
                        .seed = 5,
                        .step = 3,
                        .block = 2,
                        .site = 1,
                        .first_sample = draw.below(1000),
                        .rows_per_sample = 1 + draw.below(3),
                        .first_column = draw.below(90),
                        .all_columns = cols + 90};
  const Floats x = draw.values(n), y = draw.values(n), bias = draw.values(cols);
  k.add_bias(to.keep(draw.values(n)), bias.data(), rows, cols);
  k.bias_residual(y.data(), bias.data(), x.data(), to.floats(n), rows, cols, &dropout);
  k.dropout_backward(y.data(), to.floats(n), to.floats(cols), rows, cols, &dropout);
  k.column_sums(x.data(), to.floats(cols), rows, cols);
}

inline void embeddings(CodePath path, Trial& draw, Results& to) {
  const Kernels& k = kernels(path);
  const int64_t length = 1 + draw.below(4), rows = length * (1 + draw.below(3)),
                cols = draw.size(100), vocab = 1 + draw.below(9);
  const std::vector<int64_t> tokens = draw.ids(rows, vocab, true);
  const Floats token = draw.values(vocab * cols), position = draw.values(length * cols),
               dout = draw.values(rows * cols);
  const Dropout dropout{.rate = 0.2, .seed = 9, .rows_per_sample = length};
  k.embed(tokens.data(), token.data(), position.data(), to.floats(rows * cols), rows, length, cols,
          &dropout);
  k.embed_backward(tokens.data(), dout.data(), to.floats(vocab * cols), to.floats(length * cols),
                   rows, length, vocab, cols, &dropout);

  const auto& v = k.vocabulary;
  const int64_t first = draw.below(vocab), count = vocab - first;
  v.embed(tokens.data(), token.data(), to.floats(rows * cols), rows, cols, first, count);
  v.embed_backward(tokens.data(), dout.data(), to.floats(count * cols), rows, cols, first, count);
  v.positions(dout.data(), position.data(), to.floats(rows * cols), rows, draw.below(length),
              length, cols, &dropout);
  v.positions_backward(dout.data(), to.floats(rows * cols), to.floats(length * cols), rows, 0,
                       length, cols, &dropout);
}

inline void matmuls(CodePath path, Trial& draw, Results& to) {
  const Matmul& m = kernels(path).matmul;
  const int64_t rows = draw.size(90), cols = draw.size(90), depth = draw.size(90);
  const Floats a = draw.values(rows * depth), b = draw.values(depth * cols);
  Floats work(static_cast<size_t>(m.work(rows, cols, depth)) + 16, 7.0f);
  m.nn(a.data(), b.data(), to.floats(rows * cols), rows, cols, depth, work.data());
  m.nt(a.data(), b.data(), to.floats(rows * cols), rows, cols, depth, work.data());
  m.tn(a.data(), b.data(), to.floats(rows * cols), rows, cols, depth, work.data());
}

inline void convolutions(CodePath path, Trial& draw, Results& to) {
  const ConvKernels& k = conv_kernels(path);
  const bool small = draw.below(3) == 0;
  const ConvShape s{2 + draw.below(7), 2 + draw.below(7), draw.size(40),
                    draw.size(40),     small ? 1 : 3,     small ? 1 : 1 + draw.below(2)};
  const Floats padded = draw.values(s.padded_inputs()), dy = draw.values(s.padded_outputs()),
               weight = draw.values(s.weights());
  float *panels = to.floats(s.panels()), *back = to.floats(s.backward_panels());
  k.pack_weight(weight.data(), panels, s);
  k.pack_weight_backward(weight.data(), back, s);
  k.forward(padded.data(), panels, to.floats(s.outputs()), s);
  k.input_gradient(dy.data(), back, to.keep(draw.values(s.inputs())), s, draw.below(2) == 0);
  Floats panels_of_gradient(static_cast<size_t>(s.panels()));  // their padding is nobody's
  float* gradient = panels_of_gradient.data();
  k.weight_gradient(padded.data(), dy.data(), gradient, s, true);
  k.weight_gradient(padded.data(), dy.data(), gradient, s, false);
  k.unpack_weight(gradient, to.floats(s.weights()), s);
}

inline void images(CodePath path, Trial& draw, Results& to) {
  const ConvKernels& k = conv_kernels(path);
  const int64_t height = 2 * (1 + draw.below(4)), width = 2 * (1 + draw.below(4)),
                channels = draw.size(40), pixels = height * width, n = pixels * channels,
                padded = (height + 2) * (width + 2) * channels;
  const Floats y = draw.values(n), x = draw.values(n), scale = draw.values(channels),
               shift = draw.values(channels), dout = draw.values(n), other = draw.values(channels),
               more = draw.values(channels);
  const Affine affine{scale.data(), shift.data()};
  const Activation act = draw.below(2) == 0 ? Activation::kRelu : Activation::kGelu;
  const Pool pool = draw.below(2) == 0 ? Pool::kMax : Pool::kAverage;
  float* mean = to.floats(channels);
  k.moments(y.data(), mean, to.floats(channels), pixels, channels);
  k.pack(y.data(), &affine, act, to.floats(padded), height, width, channels);
  const Shortcut shortcut{x.data(), affine, mean};
  float* out = to.floats(n);
  k.join(y.data(), affine, shortcut, act, out, pixels, channels);
  k.join_backward(dout.data(), out, y.data(), affine, mean, shortcut, act, to.floats(n),
                  to.floats(3 * channels), pixels, channels);
  const NormGradient gradient{mean, scale.data(), other.data(), more.data()};
  k.norm_backward(dout.data(), y.data(), gradient, to.floats(padded), height, width, channels);
  k.pool(y.data(), affine, act, pool, to.floats(n / 4), height, width, channels);
  k.pool_sums(dout.data(), y.data(), affine, mean, act, pool, to.floats(2 * channels), height,
              width, channels);
  k.pool_backward(dout.data(), y.data(), affine, gradient, act, pool, to.floats(padded), height,
                  width, channels);
  k.average(y.data(), to.floats(channels), pixels, channels);
  k.average_backward(dout.data(), to.floats(n), pixels, channels);
}

inline void optimizers(CodePath path, Trial& draw, Results& to) {
  const UpdateKernels k = update_kernels(path);
  const int64_t n = draw.size(200);
  const auto positive = [&] { return std::abs(draw.value()); };
  const float scale = positive(), limit = draw.below(2) == 0 ? INFINITY : positive();
  const GradientScalars gradient{scale, limit};
  const PlainScalars plain{gradient, 0.01f, 0.1f, 0.9f, 0.95f, 0.05f, 1e-8f};
  const MomentScalars moments{gradient, 0.01f, 0.9f, 0.1f, 0.95f, 0.05f, 1e-8f, 1.1f, 1.2f, 0.01f};
  const Floats g = draw.values(n);
  const auto values = [&] { return to.keep(draw.values(n)); };
  const auto squares = [&] {
    Floats v = draw.values(n);
    for (float& x : v) x = std::abs(x);
    return to.keep(std::move(v));
  };
  float *p = values(), *m = values(), *v = squares();
  k.sgd(p, g.data(), m, n, plain, Momentum::kNext, draw.below(2) == 0);
  k.adagrad(p, g.data(), v, n, plain);
  k.rmsprop(p, g.data(), v, m, n, plain);
  k.adam(p, g.data(), m, v, n, moments);
  k.adamw(p, g.data(), m, v, n, moments);
  k.lion(p, g.data(), m, n, moments);
  const ChunkSquares sums = k.lamb_measure(p, g.data(), m, v, n, moments);
  double* kept = to.doubles(2);
  kept[0] = sums.parameter, kept[1] = sums.direction;
  k.lamb_update(p, m, v, n, moments);
}

inline void sums(CodePath path, Trial& draw, Results& to) {
  static constexpr decltype(&isa_portable::fold_shape) kFold[] = TUTTI_TABLE_OF(fold_shape);
  static constexpr decltype(&isa_portable::sum_squares) kSquares[] = TUTTI_TABLE_OF(sum_squares);
  const int64_t n = draw.size(200);
  const Floats a = draw.values(n), b = draw.values(n), c = draw.values(n), d = draw.values(n);
  const float* terms[] = {a.data(), b.data(), c.data(), d.data()};
  for (const TreeShape shape :
       {TreeShape::kPair, TreeShape::kLeft3, TreeShape::kRight3, TreeShape::kBalanced4})
    on_path(kFold, path)(shape, to.floats(n), terms, n);
  *to.doubles(1) = on_path(kSquares, path)(a.data(), n);
}

}  // namespace trials

struct KernelTrial {
  const char* name;
  void (*make)(CodePath path, Trial& draw, Results& to);
  Results run(CodePath path, uint64_t seed) const {
    Trial draw(seed);
    Results results;
    make(path, draw, results);
    return results;
  }
};
inline constexpr KernelTrial kKernelTrials[] = {
    {"norms", trials::norms},
    {"batch_norms", trials::batch_norms},
    {"losses", trials::losses},
    {"log_softmaxes", trials::log_softmaxes},
    {"vocabularies", trials::vocabularies},
    {"attentions", trials::attentions},
    {"rotaries", trials::rotaries},
    {"activations", trials::activations},
    {"residuals", trials::residuals},
    {"embeddings", trials::embeddings},
    {"matmuls", trials::matmuls},
    {"convolutions", trials::convolutions},
    {"images", trials::images},
    {"optimizers", trials::optimizers},
    {"sums", trials::sums},
};

}  // namespace tutti::test
