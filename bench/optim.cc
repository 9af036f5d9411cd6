// tutti-bench-optim: how near the optimizers come to the speed of memory. Reads lines "OPTIMIZER
// PAIRS" (an optimizer's name, or sgd-momentum, rmsprop-momentum) and answers each with a line of
// JSON: of every pair, the bytes per second of one step and of each stream kernel, taken in turns
// on the same arrays by one thread per core.
//
// Bytes are what must move: reads of parameters, gradients and slots, writes of parameters and
// slots. lamb's two passes count both. The kernels of the limit:
//   copy      a = b, written past the caches
//   triad     a = b + s c, written past the caches
//   in-place  reads and writes as many arrays as the optimizer, in place
#include <fmt/format.h>
#include <xmmintrin.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "grid/grid.h"
#include "optim/optimizer.h"
#include "stream.h"

namespace tutti {
namespace {

constexpr int64_t kParameters = int64_t{32} << 20;  // 128 MiB an array
constexpr int kArrays = 4;

/// Runs body(begin, end) on every thread's share at once; returns the seconds of the slowest.
double seconds(int threads, const std::function<void(int64_t, int64_t)>& body) {
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> team;
    const int64_t share = kParameters / kChunk / threads * kChunk;
    for (int t = 0; t < threads; ++t) {
      team.emplace_back([&, t] {
        _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);  // as the trainer has it
        body(t * share, t + 1 == threads ? kParameters : (t + 1) * share);
      });
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Arrays that one pass reads and writes.
struct Mix {
  int read, written;
  double bytes() const {
    return (read + written) * static_cast<double>(sizeof(float)) * kParameters;
  }
};

struct Arrays {
  Arrays() {
    for (auto& array : all) {
      array = static_cast<float*>(std::aligned_alloc(4096, kParameters * sizeof(float)));
      if (array == nullptr) throw Error("no memory for the arrays");
    }
  }
  ~Arrays() {
    for (float* array : all) std::free(array);
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  void fill(int threads) const {
    seconds(threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int k = 0; k < kArrays; ++k)
          all[k][i] = 0.01f + 1e-6f * static_cast<float>((i * (2 * k + 1)) % 1013);
      }
    });
  }
  float* all[kArrays];
};

TrainConfig config_of(std::string name) {
  TrainConfig config{};
  config.beta1 = 0.9;
  config.beta2 = 0.99;
  config.eps = 1e-8;
  if (const size_t with = name.find("-momentum"); with != std::string::npos) {
    name.resize(with);
    config.momentum = 0.9;
  }
  config.optimizer = name;
  return config;
}

class Bench {
 public:
  Bench() : threads_(std::max(1, this_machine().cores)) {
    static constexpr decltype(&isa_portable::stream_kernels) kStream[] =
        TUTTI_TABLE_OF(stream_kernels);
    stream_ = on_path(kStream)();
  }

  nlohmann::json measure(const std::string& name, int pairs) {
    const auto optimizer = make_optimizer(config_of(name));
    const int slots = static_cast<int>(optimizer->slots().size());
    const bool two = optimizer->two_passes();
    const std::vector<Mix> passes = two ? std::vector<Mix>{{2 + slots, slots}, {1 + slots, 1}}
                                        : std::vector<Mix>{{2 + slots, 1 + slots}};
    arrays_.fill(threads_);
    int64_t step = 1;
    const std::vector<std::pair<const char*, std::function<double()>>> contestants = {
        {"ours", [&] { return ours(*optimizer, passes, step++); }},
        {"copy",
         [&] {
           return rate({1, 1}, [&](auto at, int64_t n) { stream_.copy(at(0), at(1), n); });
         }},
        {"triad",
         [&] {
           return rate({2, 1}, [&](auto at, int64_t n) { stream_.triad(at(0), at(1), at(2), n); });
         }},
        {"in-place", [&] { return in_place(passes); }},
    };
    nlohmann::json answer{{"optimizer", name}, {"threads", threads_}};
    for (int pair = -1; pair < pairs; ++pair) {
      for (const auto& [kind, run] : contestants) {
        const double gigabytes = run() / 1e9;
        if (pair >= 0) answer["gbs"][kind].push_back(gigabytes);  // the first round warms up
      }
      arrays_.fill(threads_);
    }
    return answer;
  }

 private:
  template <typename Body>
  double rate(Mix mix, Body body) {
    return mix.bytes() / seconds(threads_, [&](int64_t begin, int64_t end) {
             body([&](int k) { return arrays_.all[k] + begin; }, end - begin);
           });
  }

  double in_place(const std::vector<Mix>& passes) {
    double bytes = 0, time = 0;
    for (const Mix& mix : passes) {
      bytes += mix.bytes();
      time += seconds(threads_, [&](int64_t begin, int64_t end) {
        float* at[kArrays];
        for (int k = 0; k < kArrays; ++k) at[k] = arrays_.all[k] + begin;
        stream_.in_place(at, mix.read, mix.written, end - begin);
      });
    }
    return bytes / time;
  }

  /// Bytes per second of a whole step: parameters are array 0, gradients 1, slots the others.
  double ours(const Optimizer& optimizer, const std::vector<Mix>& passes, int64_t step) {
    const StepScalars scalars{
        .step = step, .lr = 1e-3, .gradient_scale = 0.125, .weight_decay = 0.01};
    double bytes = 0, time = 0;
    for (size_t pass = 0; pass < passes.size(); ++pass) {
      bytes += passes[pass].bytes();
      time += seconds(threads_, [&](int64_t begin, int64_t end) {
        std::vector<float*> slots;
        for (size_t k = 0; k < optimizer.slots().size(); ++k)
          slots.push_back(arrays_.all[2 + k] + begin);
        float *p = arrays_.all[0] + begin, *g = arrays_.all[1] + begin;
        Norms norms;
        if (pass + 1 < passes.size()) {
          optimizer.measure(p, g, slots, end - begin, scalars, norms);
        } else {
          optimizer.update(p, g, slots, end - begin, scalars);
        }
      });
    }
    return bytes / time;
  }

  int threads_;
  StreamKernels stream_{};
  Arrays arrays_;
};

int main_of() {
  Bench bench;
  std::string name;
  for (int pairs = 0; std::cin >> name >> pairs;)
    std::cout << bench.measure(name, pairs).dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace tutti

int main() {
  try {
    return tutti::main_of();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
