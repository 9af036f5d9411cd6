// Time per part of one training step of `gpt-bench` on one thread (a rank's 8 samples of 256 tokens): every kernel,
// every matmul with its rate, and the whole step through the segments. Best of several rounds, in milliseconds for all
// layers.
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
#include "model/gpt.h"
#include "model/runner.h"
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
      p[i] = scale * (static_cast<float>((static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u) >> 40) * 0x1p-23f - 1);
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
  const Floats x(kRows * kWidth), y(kRows * kWidth), z(kRows * kWidth), weight(4 * kWidth), bias(4 * kWidth, 0.1f);
  const Floats stats(2 * kRows), gradients(8 * kWidth), wide(kRows * 4 * kWidth), wide2(kRows * 4 * kWidth);
  const Floats qkv(kRows * 3 * kWidth), dqkv(kRows * 3 * kWidth), lse(kRows * kHeads);
  const AttentionShape shape{kBatch, kLength, kHeads, kWidth / kHeads};
  const Floats work(k.attention_work(shape)), logits(kRows * kVocab), dlogits(kRows * kVocab);
  std::vector<int64_t> ids(kRows);
  for (int64_t i = 0; i < kRows; ++i) ids[i] = i * 37 % kVocab;
  float *mean = stats.data(), *rstd = stats.data() + kRows;
  table.row("norm", 2 * kLayers + 1,
            [&] { k.layer_norm(x.data(), weight.data(), bias.data(), y.data(), mean, rstd, kRows, kWidth, 1e-5f); });
  table.row("norm backward", 2 * kLayers + 1, [&] {
    k.layer_norm_backward(y.data(), x.data(), mean, rstd, weight.data(), z.data(), z.data(), gradients.data(),
                          gradients.data() + kWidth, kRows, kWidth);
  });
  table.row("bias + residual", 2 * kLayers,
            [&] { k.bias_residual(y.data(), bias.data(), x.data(), y.data(), kRows, kWidth, nullptr); });
  table.row("bias gradient", 2 * kLayers, [&] { k.column_sums(y.data(), gradients.data(), kRows, kWidth); });
  table.row("gelu exact", kLayers,
            [&] { k.bias_gelu(wide.data(), bias.data(), wide2.data(), kRows, 4 * kWidth, Gelu::kExact); });
  table.row("gelu backward", kLayers,
            [&] { k.gelu_backward(wide2.data(), wide.data(), wide2.data(), gradients.data(), kRows, 4 * kWidth); });
  table.row("attention", kLayers,
            [&] { k.attention(qkv.data(), bias.data(), y.data(), lse.data(), work.data(), shape); });
  table.row("attention backward", kLayers, [&] {
    k.attention_backward(x.data(), qkv.data(), y.data(), lse.data(), dqkv.data(), gradients.data(), work.data(), shape);
  });
  double loss[2];
  table.row("loss forward and backward", 1, [&] {
    k.cross_entropy(logits.data(), ids.data(), lse.data(), loss, kRows, kVocab);
    k.cross_entropy_backward(logits.data(), ids.data(), lse.data(), dlogits.data(), kRows, kVocab);
  });
  const Floats token(kVocab * kWidth), position(kLength * kWidth);
  table.row("embedding, both ways", 1, [&] {
    k.embed(ids.data(), token.data(), position.data(), x.data(), kRows, kLength, kWidth, nullptr);
    k.embed_backward(ids.data(), x.data(), token.data(), position.data(), kRows, kLength, kVocab, kWidth, nullptr);
  });
}

void matmul_rows(Table& table, int64_t rows) {
  struct Layer {
    const char* name;
    int64_t in, out, times;
  };
  for (const Layer& l : {Layer{"qkv", kWidth, 3 * kWidth, kLayers}, Layer{"proj", kWidth, kWidth, kLayers},
                         Layer{"fc1", kWidth, 4 * kWidth, kLayers}, Layer{"fc2", 4 * kWidth, kWidth, kLayers},
                         Layer{"head", kWidth, kVocab, 1}}) {
    const Floats x(rows * l.in), y(rows * l.out), w(l.in * l.out);
    const double forward = milliseconds([&] { matmul_nt(x.data(), w.data(), y.data(), rows, l.out, l.in); });
    const double dgrad = milliseconds([&] { matmul_nn(y.data(), w.data(), x.data(), rows, l.in, l.out); });
    const double wgrad = milliseconds([&] { matmul_tn(y.data(), x.data(), w.data(), l.out, l.in, rows); });
    const double gflop = 2e-6 * static_cast<double>(rows * l.in * l.out);
    const double ms = (forward + dgrad + wgrad) * static_cast<double>(l.times);
    table.total += ms;
    print("  {:<5} {:>5} -> {:<5}           {:8.2f}   forward {:5.1f}  input {:5.1f}  weight {:5.1f} GFLOP/s\n", l.name,
          l.in, l.out, ms, gflop / forward, gflop / dgrad, gflop / wgrad);
  }
}

double whole_step(Isa isa) {
  ModelConfig c{};
  c.kind = "gpt";
  c.layers = kLayers;
  c.width = kWidth;
  c.heads = kHeads;
  c.context = kLength;
  c.vocab = kVocab;
  c.gelu = "exact";
  c.init = "normal";
  c.init_scale = 0.02;
  const Model model = make_gpt(c, kBatch, isa);
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
      initialise(model.blocks[b].parameters[i], p.name, 1, {units[b] + p.offset, static_cast<size_t>(p.size)});
    }
  }
  const at::Tensor tokens = at::empty({kBatch, kLength}, at::kLong), targets = at::empty({kBatch, kLength}, at::kLong);
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

int run(const char* name) {
  at::set_num_threads(1);
  const Isa isa = isa_of(name);
  Table other, matmul;
  print("kernels, {}, ms a step\n", name);
  kernel_rows(other, kernels(isa));
  print("matmuls, ms a step\n");
  matmul_rows(matmul, kRows);
  const double step = whole_step(isa);
  print("kernels {:.1f} ms, matmuls {:.1f} ms ({:.1f} % of both); step by the segments {:.1f} ms\n", other.total,
        matmul.total, 100 * matmul.total / (matmul.total + other.total), step);
  return 0;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  return tutti::run(argc > 1 ? argv[1] : tutti::supported(tutti::Isa::kAvx512) ? "avx512" : "avx2");
}
