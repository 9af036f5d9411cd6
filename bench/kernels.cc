// Time per part of one training step of `gpt-bench` on one thread (a rank's 8 samples of 256
// tokens): every kernel, every matmul by own kernels and by MKL, and the whole step through the
// segments. Best of several rounds, in milliseconds for all layers.
#include "tensor/kernels.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#include "base/philox.h"
#include "base/processor.h"
#include "config/enum_text.h"
#include "config/isa.h"
#include "model/core/runner.h"
#include "model/gpt/gpt.h"
#include "tensor/matmul.h"

namespace tutti {
namespace {

constexpr int64_t kBatch = 8, kLength = 256, kWidth = 384, kHeads = 6, kVocab = 256, kLayers = 6;
constexpr int64_t kRows = kBatch * kLength;
constexpr int kRounds = 7;

template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stdout);
}

/// The thread's own processor time: other work on the machine is not counted.
double own_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

double milliseconds(const std::function<void()>& body) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const double start = own_time();
    body();
    best = std::min(best, own_time() - start);
  }
  return best;
}

struct Floats {
  explicit Floats(int64_t n, float scale = 1) : tensor(at::empty({n}, at::kFloat)) {
    float* p = data();
    for (int64_t i = 0; i < n; ++i) {
      p[i] = scale * (static_cast<float>((static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u) >> 40) *
                          0x1p-23f -
                      1);
    }
  }
  float* data() const { return tensor.mutable_data_ptr<float>(); }
  at::Tensor tensor;
};

struct Table {
  double total = 0;
  void row(const char* name, int64_t times, const std::function<void()>& body) {
    const double ms = milliseconds(body) * static_cast<double>(times);
    total += ms;
    print("  {:<28} {:8.2f}\n", name, ms);
  }
};

void kernel_rows(Table& table, const Kernels& k) {
  const Floats x(kRows * kWidth), y(kRows * kWidth), z(kRows * kWidth), weight(4 * kWidth),
      bias(4 * kWidth, 0.1f);
  const Floats stats(2 * kRows), gradients(8 * kWidth), wide(kRows * 4 * kWidth),
      wide2(kRows * 4 * kWidth);
  const Floats qkv(kRows * 3 * kWidth), dqkv(kRows * 3 * kWidth), lse(kRows * kHeads);
  const AttentionShape shape{kBatch, kLength, kHeads, kWidth / kHeads};
  const Floats work(k.attention_work(shape)), logits(kRows * kVocab), dlogits(kRows * kVocab);
  std::vector<int64_t> ids(kRows);
  for (int64_t i = 0; i < kRows; ++i) ids[i] = i * 37 % kVocab;
  float *mean = stats.data(), *rstd = stats.data() + kRows;
  table.row("norm", 2 * kLayers + 1, [&] {
    k.layer_norm(x.data(), weight.data(), bias.data(), y.data(), mean, rstd, kRows, kWidth, 1e-5f);
  });
  table.row("norm backward", 2 * kLayers + 1, [&] {
    k.layer_norm_backward(y.data(), x.data(), mean, rstd, weight.data(), z.data(), z.data(),
                          gradients.data(), gradients.data() + kWidth, kRows, kWidth);
  });
  table.row("bias + residual", 2 * kLayers, [&] {
    k.bias_residual(y.data(), bias.data(), x.data(), y.data(), kRows, kWidth, nullptr);
  });
  table.row("bias gradient", 2 * kLayers,
            [&] { k.column_sums(y.data(), gradients.data(), kRows, kWidth); });
  table.row("gelu exact", kLayers, [&] {
    k.bias_activation(wide.data(), bias.data(), wide2.data(), kRows, 4 * kWidth, Activation::kGelu);
  });
  table.row("gelu backward", kLayers, [&] {
    k.activation_backward(wide2.data(), wide.data(), wide2.data(), gradients.data(), kRows,
                          4 * kWidth, Activation::kGelu);
  });
  table.row("attention", kLayers, [&] {
    k.attention(qkv.data(), bias.data(), y.data(), lse.data(), work.data(), shape);
  });
  table.row("attention backward", kLayers, [&] {
    k.attention_backward(x.data(), qkv.data(), y.data(), lse.data(), dqkv.data(), gradients.data(),
                         work.data(), shape);
  });
  double loss[2];
  table.row("loss forward and backward", 1, [&] {
    k.cross_entropy(logits.data(), ids.data(), lse.data(), loss, kRows, kVocab);
    k.cross_entropy_backward(logits.data(), ids.data(), lse.data(), nullptr, dlogits.data(), kRows,
                             kVocab);
  });
  const Floats token(kVocab * kWidth), position(kLength * kWidth);
  table.row("embedding, both ways", 1, [&] {
    k.embed(ids.data(), token.data(), position.data(), x.data(), kRows, kLength, kWidth, nullptr);
    k.embed_backward(ids.data(), x.data(), token.data(), position.data(), kRows, kLength, kVocab,
                     kWidth, nullptr);
  });
}

/// Best of several rounds of each body, by turns.
std::vector<double> side_by_side(int rounds, const std::vector<std::function<void()>>& bodies) {
  std::vector<double> best(bodies.size(), 1e9);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      const double start = own_time();
      bodies[i]();
      best[i] = std::min(best[i], own_time() - start);
    }
  }
  return best;
}

struct Layer {
  const char* name;
  int64_t in, out, times;
};

/// The three products of each layer, by the own kernels and by MKL. Times of all of them go to
/// own_ms and mkl_ms.
void matmul_rows(const Matmul& own, const Matmul& mkl, int64_t rows,
                 const std::vector<Layer>& layers, double& own_ms, double& mkl_ms) {
  print("  {} rows: GFLOP/s by own kernels, by MKL, ratio\n", rows);
  for (const Layer& l : layers) {
    const Floats x(rows * l.in), y(rows * l.out), w(l.in * l.out),
        work(own.layer_work(rows, l.in, l.out));
    const double gflop = 2e-6 * static_cast<double>(rows * l.in * l.out);
    const int repeats = std::max(1, static_cast<int>(0.5 / gflop));
    print("  {:<5} {:>5} -> {:<5}", l.name, l.in, l.out);
    const auto products = [&](const char* name, auto product) {
      const auto repeated = [&](const Matmul& by) {
        return [&] {
          for (int i = 0; i < repeats; ++i) product(by);
        };
      };
      const std::vector<double> ms = side_by_side(2 * kRounds, {repeated(own), repeated(mkl)});
      print("   {} {:5.1f} {:5.1f} {:4.2f}", name, gflop * repeats / ms[0], gflop * repeats / ms[1],
            ms[1] / ms[0]);
      own_ms += ms[0] / repeats * static_cast<double>(l.times);
      mkl_ms += ms[1] / repeats * static_cast<double>(l.times);
    };
    products("forward", [&](const Matmul& by) {
      by.nt(x.data(), w.data(), y.data(), rows, l.out, l.in, work.data());
    });
    products("input", [&](const Matmul& by) {
      by.nn(y.data(), w.data(), x.data(), rows, l.in, l.out, work.data());
    });
    products("weight", [&](const Matmul& by) {
      by.tn(y.data(), x.data(), w.data(), l.out, l.in, rows, work.data());
    });
    print("\n");
  }
}

double whole_step(const Kernels& kernels) {
  Job job;
  job.loss.kind = "cross-entropy";
  job.train.micro_batch_size = kBatch;
  ModelConfig& c = job.model;
  c.kind = "gpt";
  c.layers = kLayers;
  c.width = kWidth;
  c.heads = kHeads;
  c.context = kLength;
  c.vocab = kVocab;
  c.activation = Activation::kGelu;
  c.norm = NormKind::kLayer;
  c.positions = Positions::kLearned;
  c.bias = true;
  c.init = InitKind::kNormal;
  c.init_scale = 0.02;
  const Model model = make_gpt(job, kernels);
  const ModelShape shape = describe(model);
  Accounts accounts;
  std::vector<at::Tensor> memory;
  std::vector<float*> units, gradients;
  for (size_t b = 0; b < shape.blocks.size(); ++b) {
    memory.push_back(at::empty({shape.blocks[b].unit_size}, at::kFloat));
    units.push_back(memory.back().mutable_data_ptr<float>());
    memory.push_back(at::empty({shape.blocks[b].gradient_size}, at::kFloat));
    gradients.push_back(memory.back().mutable_data_ptr<float>());
    for (size_t i = 0; i < shape.blocks[b].parameters.size(); ++i) {
      const ParameterShape& p = shape.blocks[b].parameters[i];
      initialise(model.blocks[b].parameters[i], p.name, 1,
                 {units[b] + p.offset, static_cast<size_t>(p.size)});
    }
  }
  const at::Tensor tokens = at::empty({kBatch, kLength}, at::kLong),
                   targets = at::empty({kBatch, kLength}, at::kLong);
  for (int64_t i = 0; i < kRows; ++i) {
    tokens.mutable_data_ptr<int64_t>()[i] = i * 37 % kVocab;
    targets.mutable_data_ptr<int64_t>()[i] = (i + 1) * 37 % kVocab;
  }
  ModelRunner runner(model, shape, units, accounts);
  const std::vector<at::Tensor> data{tokens, targets};
  const Pass pass{};
  return milliseconds([&] {
    runner.forward_all(pass, data);
    runner.backward_all(pass, data, gradients);
  });
}

int run(CodePath path) {
  at::set_num_threads(1);
  const Kernels &own = kernels(path), &mkl = kernels(path, MatmulKind::kMkl);
  Table other;
  print("kernels, {}, ms per step\n", name_of(path));
  kernel_rows(other, own);
  const std::vector<Layer> bench = {{"qkv", kWidth, 3 * kWidth, kLayers},
                                    {"proj", kWidth, kWidth, kLayers},
                                    {"fc1", kWidth, 4 * kWidth, kLayers},
                                    {"fc2", 4 * kWidth, kWidth, kLayers},
                                    {"head", kWidth, kVocab, 1}};
  print("matmuls\n");
  double own_ms = 0, mkl_ms = 0, small_own = 0, small_mkl = 0;
  matmul_rows(own.matmul, mkl.matmul, kRows, bench, own_ms, mkl_ms);
  matmul_rows(own.matmul, mkl.matmul, 512, bench, small_own, small_mkl);
  matmul_rows(own.matmul, mkl.matmul, 64, bench, small_own, small_mkl);
  matmul_rows(
      own.matmul, mkl.matmul, 512,
      {{"qkv", 192, 576, 1}, {"proj", 192, 192, 1}, {"fc1", 192, 768, 1}, {"fc2", 768, 192, 1}},
      small_own, small_mkl);
  print(
      "{} rows, all layers: own {:.1f} ms, MKL {:.1f} ms, ratio {:.3f}; the smaller shapes: ratio "
      "{:.3f}\n",
      kRows, own_ms, mkl_ms, mkl_ms / own_ms, small_mkl / small_own);
  const double own_step = whole_step(own), mkl_step = whole_step(mkl);
  print(
      "a step: other kernels {:.1f} ms, own matmuls {:.1f} ms; by the segments {:.1f} ms, with MKL "
      "{:.1f} ms\n",
      other.total, own_ms, own_step, mkl_step);
  return 0;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  return tutti::run(tutti::path_of(argc > 1 ? tutti::value_named<tutti::Isa>(argv[1]).value()
                                            : tutti::Isa::kAuto));
}
