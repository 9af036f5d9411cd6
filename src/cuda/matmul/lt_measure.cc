// Looks for the fastest algorithm of every product that the process has multiplied, and prints the
// rows of lt_choices.cc.
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "cuda/errors.h"
#include "cuda/matmul/lt_plan.h"

namespace tutti {

namespace {

/// The algorithms that are worth timing: what the library offers, and a family of kernels of which
/// it offers few. The family's kernels differ in what a block computes (tile), in which pairs of
/// blocks share operands (cluster) and in further options (custom).
std::vector<LtReady> candidates(const LtProduct& p, const LtPlan& plan, cublasLtHandle_t handle) {
  std::vector<LtReady> list = lt_offered(plan, handle);

  constexpr int32_t kFamily = 66;
  constexpr uint32_t kTiles[] = {20, 21, 23, 24, 27, 28, 29, 31, 184, 201, 209, 408, 495},
                     kCustoms = 8;
  for (const uint32_t tile : kTiles)
    for (const uint16_t cluster : {CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1})
      for (uint32_t custom = 0; custom < kCustoms; ++custom)
        if (const auto made = lt_by_name({kFamily, tile, CUBLASLT_MATMUL_STAGES_64xAUTO, 1,
                                          CUBLASLT_REDUCTION_SCHEME_NONE, 0, custom, 0, cluster},
                                         p, plan, handle))
          list.push_back(*made);
  return list;
}

/// Arrays of random values for a product.
struct RandomArrays {
  explicit RandomArrays(const LtProduct& p)
      : a(values(p.in, p.m * p.k)),
        b(values(p.in, p.k * p.n)),
        c(values(p.out, p.m * p.n)),
        bias(values(p.out, p.n)),
        like_c(values(p.out, p.residual || p.epilogue > LtEpilogue::kBias ? p.m * p.n : 0)) {
    // Only what the product's epilogue and residual read is named.
    arrays = {a.data_ptr(), b.data_ptr(), c.data_ptr()};
    if (p.epilogue == LtEpilogue::kBias || p.epilogue == LtEpilogue::kBiasGelu)
      arrays.bias = bias.data_ptr();
    if (p.epilogue > LtEpilogue::kBias) arrays.aux = like_c.data_ptr();
    if (p.residual) arrays.residual = like_c.data_ptr();
  }

  static at::Tensor values(at::ScalarType type, int64_t count) {
    return at::randn(
        {count}, at::TensorOptions().device(at::kCUDA, c10::cuda::current_device()).dtype(type));
  }
  at::Tensor a, b, c, bias, like_c;
  LtArrays arrays{};
};

/// Times several runs in a row and returns the milliseconds per run.
class Stopwatch {
 public:
  Stopwatch() : stream_(c10::cuda::getCurrentCUDAStream()) {
    TUTTI_CUDA_CALL(cudaEventCreate, &begin_);
    TUTTI_CUDA_CALL(cudaEventCreate, &end_);
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  double time(int runs, const std::function<void()>& run) {
    TUTTI_CUDA_CALL(cudaEventRecord, begin_, stream_);
    for (int n = 0; n < runs; ++n) run();
    TUTTI_CUDA_CALL(cudaEventRecord, end_, stream_);
    TUTTI_CUDA_CALL(cudaEventSynchronize, end_);
    float all = 0;
    TUTTI_CUDA_CALL(cudaEventElapsedTime, &all, begin_, end_);
    return all / static_cast<float>(runs);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// An algorithm and its time in every round.
struct Timed {
  LtReady algorithm;
  std::vector<double> times = {};
  double median() const {
    std::vector<double> sorted = times;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2),
                     sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// Returns the fastest of the candidates, and the one that is chosen at present. A GPU under load
/// slows down as it heats up, and not for all kernels alike: so candidates take turns, to be timed
/// on the same hot GPU, and slow ones leave after the first round.
std::pair<Timed, Timed> fastest(const LtProduct& p, const LtPlan& plan, cublasLtHandle_t handle) {
  constexpr int kRounds = 9, kRuns = 3;
  constexpr double kNear = 1.12;
  const RandomArrays random(p);
  Stopwatch stopwatch;
  std::vector<Timed> all{{*plan.chosen}};

  // The chosen one is first in the list and never leaves it. A first run also loads the kernel.
  for (const LtReady& candidate : candidates(p, plan, handle))
    if (plan.run(handle, random.arrays, candidate) == CUBLAS_STATUS_SUCCESS)
      all.push_back({candidate});

  for (int round = 0; round < kRounds; ++round) {
    for (Timed& timed : all) {
      const auto run = [&] {
        check_lt(plan.run(handle, random.arrays, timed.algorithm), "cublasLtMatmul");
      };
      timed.times.push_back(stopwatch.time(kRuns, run));
    }
    if (round > 0) continue;
    // After the first round those that are far behind leave, so that the rest are timed at length.
    double best = all.front().median();
    for (const Timed& timed : all) best = std::min(best, timed.median());
    all.erase(std::remove_if(all.begin() + 1, all.end(),
                             [&](const Timed& t) { return t.median() > kNear * best; }),
              all.end());
  }
  const auto first = std::min_element(all.begin(), all.end(), [](const Timed& a, const Timed& b) {
    return a.median() < b.median();
  });
  return {*first, all.front()};
}

/// A row of lt_choices.cc, as source text.
std::string row(const LtProduct& p, const LtAlgorithm& a, double now, double before) {
  static constexpr const char* kEpilogues[] = {"kNone", "kBias", "kGelu", "kGradient"};
  const auto type = [](at::ScalarType t) {
    return t == at::kBFloat16 ? "kLow" : t == at::kFloat ? "kFull" : "at::kHalf";
  };
  return fmt::format(
      "    {{{{{}, {}, {}, {}, {}, {}, {}, {}, {}}}, {{{}, {}, {}, {}, {}, {}, {}, {}, {}}}}},  // "
      "{:.4f} ms, was "
      "{:.4f}\n",
      type(p.in), type(p.out), p.a_transposed, p.b_transposed, p.m, p.n, p.k,
      kEpilogues[static_cast<int>(p.epilogue)], p.residual, a.id, a.tile, a.stages, a.split,
      a.reduction, a.swizzle, a.custom, a.inner, a.cluster, now, before);
}

}  // namespace

std::string measure_lt_products() {
  std::string rows = fmt::format("    // {}, cuBLASLt {}\n", lt_gpu(), cublasLtGetVersion());
  for_each_lt_plan([&](const LtProduct& product, const LtPlan& plan, cublasLtHandle_t handle) {
    const auto [best, now] = fastest(product, plan, handle);
    rows += row(product, lt_name(best.algorithm.algorithm), best.median(), now.median());
  });
  return rows;
}

}  // namespace tutti
