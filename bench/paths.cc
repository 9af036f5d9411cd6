// The code paths of the CPU's kernels, asked line by line. Every answer is a line of JSON.
//   peak PATH                        GFLOP/s of fused multiply-adds in registers
//   matmul PATH own|mkl ROWS IN OUT  GFLOP/s of a linear layer's three products
//   attention PATH BATCH LENGTH HEADS DIM  seconds of a causal attention, and GFLOP/s of the products
//                                    that its triangle needs: {"forward", "backward", "forward_gflops",
//                                    "backward_gflops"}
//   gelu PATH ROWS COLUMNS           seconds of an exact GELU, forward
//   trials VALUES                    compares so many values of every kind of kernel on all paths
// Rates are those of all cores at work, by the core. PATH is a value of layout.isa.
#include <fmt/format.h>

#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/processor.h"
#include "config/isa.h"
#include "config/job.h"
#include "stream.h"
#include "support/kernel_trials.h"
#include "tensor/kernels.h"
#include "tensor/threads.h"

namespace tutti {
namespace {

/// Seconds that one call takes, the median over cores of the best of several on each, while all
/// cores make it.
double seconds_on_all_cores(const std::function<std::function<void()>()>& make) {
  const int cores = this_machine().cores;
  std::vector<double> best(static_cast<size_t>(cores), 1e9);
  std::barrier together(cores);
  std::vector<std::jthread> threads;
  for (double& mine : best) {
    threads.emplace_back([&] {
      prepare_compute_thread(1);
      const std::function<void()> call = make();
      for (int i = 0; i < 5; ++i) {
        together.arrive_and_wait();
        const auto begin = std::chrono::steady_clock::now();
        call();
        const auto end = std::chrono::steady_clock::now();
        mine = std::min(mine, std::chrono::duration<double>(end - begin).count());
      }
    });
  }
  threads.clear();
  std::sort(best.begin(), best.end());
  return best[best.size() / 2];
}

double peak(CodePath path) {
  static constexpr decltype(&isa_portable::multiply_adds) kLoops[] = TUTTI_TABLE_OF(multiply_adds);
  constexpr int64_t kRounds = 2'000'000;
  double flops = 0;
  const double seconds =
      seconds_on_all_cores([&] { return [&] { flops = on_path(kLoops, path)(kRounds); }; });
  return flops / seconds / 1e9;
}

double matmul(CodePath path, MatmulKind kind, int64_t rows, int64_t in, int64_t out) {
  const Matmul& by = kernels(path, kind).matmul;
  const double flop = 3 * 2.0 * static_cast<double>(rows * in * out);
  const int repeats = std::max(1, static_cast<int>(1e9 / flop));
  const double seconds = seconds_on_all_cores([&] {
    struct Arrays {
      std::vector<float> x, y, w, work;
    };
    const auto size = [](int64_t n) { return std::vector<float>(static_cast<size_t>(n), 0.5f); };
    const auto a = std::make_shared<Arrays>(Arrays{
        size(rows * in), size(rows * out), size(in * out), size(by.layer_work(rows, in, out))});
    return [&, a] {
      for (int i = 0; i < repeats; ++i) {
        by.nt(a->x.data(), a->w.data(), a->y.data(), rows, out, in, a->work.data());
        by.nn(a->y.data(), a->w.data(), a->x.data(), rows, in, out, a->work.data());
        by.tn(a->y.data(), a->x.data(), a->w.data(), out, in, rows, a->work.data());
        std::fill(a->x.begin(), a->x.end(), 0.5f);  // values must not grow
        std::fill(a->w.begin(), a->w.end(), 0.5f);
      }
    };
  });
  return flop * repeats / seconds / 1e9;
}

std::string attention(CodePath path, const AttentionShape& shape) {
  const auto& by = kernels(path, MatmulKind::kOwn);
  struct Arrays {
    std::vector<float> qkv, out, lse, dout, dqkv, dbias, work;
  };
  const auto draw = [](int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i % 10007));
    return values;
  };
  const auto make = [&] {
    const int64_t rows = shape.batch * shape.length, width = shape.heads * shape.dim;
    return std::make_shared<Arrays>(Arrays{draw(rows * shape.columns()), draw(rows * width),
                                           draw(shape.batch * shape.heads * shape.length),
                                           draw(rows * width), draw(rows * shape.columns()),
                                           draw(shape.columns()), draw(by.attention_work(shape))});
  };
  const double forward = seconds_on_all_cores([&] {
    return [&, a = make()] {
      by.attention(a->qkv.data(), nullptr, a->out.data(), a->lse.data(), a->work.data(), shape);
    };
  });
  const double backward = seconds_on_all_cores([&] {
    const auto a = make();
    by.attention(a->qkv.data(), nullptr, a->out.data(), a->lse.data(), a->work.data(), shape);
    return [&, a] {
      by.attention_backward(a->dout.data(), a->qkv.data(), a->out.data(), a->lse.data(),
                            a->dqkv.data(), a->dbias.data(), a->work.data(), shape);
    };
  });
  const double product = static_cast<double>(shape.batch * shape.heads * shape.dim) *
                         static_cast<double>(shape.length * (shape.length + 1));
  return fmt::format(
      R"({{"forward": {}, "backward": {}, "forward_gflops": {}, "backward_gflops": {}}})", forward,
      backward, 2 * product / forward / 1e9, 5 * product / backward / 1e9);
}

std::string gelu(CodePath path, int64_t rows, int64_t columns) {
  const auto& by = kernels(path, MatmulKind::kOwn);
  const double seconds = seconds_on_all_cores([&] {
    const auto size = static_cast<size_t>(rows * columns);
    const auto h = std::make_shared<std::vector<float>>(size),
               g = std::make_shared<std::vector<float>>(size);
    // The time does not depend on the values, which the derivatives replace.
    return [&, h, g] {
      by.bias_activation(h->data(), nullptr, g->data(), rows, columns, Activation::kGelu);
    };
  });
  return fmt::format(R"({{"seconds": {}}})", seconds);
}

std::string trials(int64_t values) {
  prepare_compute_thread(1);
  int64_t all = 0;
  for (const test::KernelTrial& kind : test::kKernelTrials) {
    int64_t compared = 0;
    for (uint64_t seed = 1; compared < values; ++seed) {
      const test::Results expected = kind.run(CodePath::kPortable, seed);
      for (const CodePath path : runnable_paths()) {
        const std::string difference = test::difference(expected, kind.run(path, seed));
        if (!difference.empty())
          return fmt::format(R"({{"fault": "{} on {}, seed {}: {}"}})", kind.name, name_of(path),
                             seed, difference);
      }
      for (const auto& array : expected.arrays()) compared += static_cast<int64_t>(array.size());
    }
    all += compared;
  }
  return fmt::format(R"({{"values": {}, "kinds": {}}})", all, std::size(test::kKernelTrials));
}

std::string answer(const std::string& line) {
  std::istringstream words(line);
  std::string what, isa, kind;
  words >> what;
  if (what == "trials") {
    int64_t values = 0;
    words >> values;
    return trials(values);
  }
  words >> isa;
  const CodePath path = path_of(value_named<Isa>(isa).value());
  if (what == "peak") return fmt::format(R"({{"gflops": {}}})", peak(path));
  if (what == "attention") {
    AttentionShape shape{};
    words >> shape.batch >> shape.length >> shape.heads >> shape.dim;
    shape.kv_heads = shape.heads;
    return attention(path, shape);
  }
  if (what == "gelu") {
    int64_t rows = 0, columns = 0;
    words >> rows >> columns;
    return gelu(path, rows, columns);
  }
  int64_t rows = 0, in = 0, out = 0;
  words >> kind >> rows >> in >> out;
  return fmt::format(R"({{"gflops": {}}})",
                     matmul(path, value_named<MatmulKind>(kind).value(), rows, in, out));
}

}  // namespace
}  // namespace tutti

int main() {
  // Whoever wants another path of MKL than this processor's says so.
  if (std::getenv("MKL_CBWR") == nullptr) tutti::choose_library_isa();
  for (std::string line; std::getline(std::cin, line);)
    std::cout << tutti::answer(line) << std::endl;
}
