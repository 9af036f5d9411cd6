// Folds, sums of squares and the commit on a GPU: the CPU's bits, and the host's decisions.
#include <cmath>
#include <limits>
#include <numeric>

#include "comm/fold.h"
#include "gpu/gpu.h"
#include "grid/grid.h"
#include "optim/optimizer.h"

namespace tutti {
namespace {

using GpuState = SeededGpuTest;

/// Any tree over `count` terms.
std::vector<FoldStep> random_tree(std::mt19937_64& random, int count) {
  std::vector<int> alive(count);
  std::iota(alive.begin(), alive.end(), 0);
  std::vector<FoldStep> order;
  while (alive.size() > 1) {
    const size_t left = random() % (alive.size() - 1);
    order.push_back({alive[left], alive[left + 1]});
    alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(left) + 1);
  }
  return order;
}

TEST_F(GpuState, FoldsTreesToTheBitsOfTheCpu) {
  std::vector<std::vector<FoldStep>> orders = {{},
                                               {{0, 1}},
                                               {{0, 1}, {0, 2}},
                                               {{1, 2}, {0, 1}},
                                               {{0, 1}, {2, 3}, {0, 2}},
                                               {{0, 1}, {0, 2}, {0, 3}}};
  for (const int terms : {5, 8, 9, 16, 64, 65, 200}) orders.push_back(random_tree(random, terms));
  for (const auto& order : orders) {
    for (const int64_t n : {1, 1023, 1025, 40003}) {
      const size_t count = order.size() + 1;
      const std::vector<float> values = random_floats(random, count * n);
      GpuArray<float> memory = on_gpu(values), out(*device, stream, n);
      std::vector<const float*> host, gpu;
      for (size_t t = 0; t < count; ++t) {
        host.push_back(values.data() + t * n);
        gpu.push_back(memory.data() + t * n);
      }
      std::vector<float> want(n);
      fold(want.data(), host, order, n);
      const std::string what = fmt::format("{} terms of {}", count, n);
      library.state.fold(stream, out.data(), gpu, order, n);
      expect_same_bits(out.get(), want, what);
      // Into one of the terms.
      const size_t into = random() % count;
      library.state.fold(stream, memory.data() + into * n, gpu, order, n);
      const std::vector<float> after = memory.get();
      expect_same_bits(std::vector<float>(after.begin() + into * n, after.begin() + (into + 1) * n),
                       want, what + " in place");
    }
  }
}

TEST_F(GpuState, AddsIntoAnArray) {
  const std::vector<float> a = random_floats(random, 5001), b = random_floats(random, 5001);
  GpuArray<float> on_a = on_gpu(a), on_b = on_gpu(b);
  library.state.add_into(stream, on_a.data(), on_b.data(), 5001);
  std::vector<float> want = a;
  add_into(want.data(), b.data(), 5001);
  expect_same_bits(on_a.get(), want, "sum");
}

TEST_F(GpuState, SumsSquaresOfChunksToTheBitsOfTheCpu) {
  std::vector<StateChunk> chunks;
  int64_t at = 3;
  for (const int size : {1, 31, 32, 33, 4095, 4096, 4096, 7, 2048, 100}) {
    chunks.push_back({.at = at, .size = size});
    at += size + static_cast<int64_t>(random() % 5);
  }
  for (size_t c = 0; c < chunks.size(); ++c)
    chunks[c].place = static_cast<int32_t>(chunks.size() - c);
  const std::vector<float> x = random_floats(random, at);
  GpuArray<float> on_x = on_gpu(x);
  GpuArray<StateChunk> on_chunks = on_gpu(chunks);
  GpuArray<double> votes(*device, stream, chunks.size() + 2);
  library.state.chunk_squares(stream, on_x.data(), on_chunks.data(),
                              static_cast<int64_t>(chunks.size()), votes.data());
  std::vector<double> want(chunks.size() + 2);
  for (const StateChunk& chunk : chunks)
    want[chunk.place] = sum_squares(x.data() + chunk.at, chunk.size);
  expect_same_bits(votes.get(), want, "sums of squares");
}

struct Commit {
  StepOutcome outcome;
  std::vector<float> scales;
};

/// Units of so many chunks each.
class GpuCommit : public SeededGpuTest {
 protected:
  Commit run(const std::vector<int64_t>& unit_sizes, int micro_batches,
             const std::vector<double>& votes, const StepInputs& inputs) {
    std::vector<int64_t> begins = {0};
    for (const int64_t size : unit_sizes) begins.push_back(begins.back() + size);
    GpuArray<int64_t> on_begins = on_gpu(begins);
    const int units = static_cast<int>(unit_sizes.size());
    const VoteLayout layout{.units = units,
                            .micro_batches = micro_batches,
                            .unit_chunks = on_begins.data(),
                            .chunks = begins.back()};
    EXPECT_EQ(static_cast<int64_t>(votes.size()), layout.size());
    GpuArray<double> on_votes = on_gpu(votes);
    GpuArray<StepInputs> on_inputs = on_gpu(std::vector<StepInputs>{inputs});
    GpuArray<std::byte> out(*device, stream, static_cast<size_t>(outcome_bytes(units)));
    library.state.commit(stream, on_votes.data(), layout, on_inputs.data(),
                         reinterpret_cast<StepOutcome*>(out.data()));
    const std::vector<std::byte> bytes = out.get();
    Commit got{.outcome = {}, .scales = std::vector<float>(units)};
    std::memcpy(&got.outcome, bytes.data(), sizeof(StepOutcome));
    std::memcpy(got.scales.data(), bytes.data() + sizeof(StepOutcome), units * sizeof(float));
    return got;
  }
};

TEST_F(GpuCommit, SumsVotesAndDecidesClipFactors) {
  const std::vector<int64_t> sizes = {1, 0, 1500, 7, 1024, 3000};
  constexpr int kMicro = 1100;
  const int64_t chunks = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  // Whole numbers: sums of squares are exact in any order. Losses are not: their order is fixed.
  std::vector<double> votes(chunks + 2 * kMicro + 2);
  for (int64_t c = 0; c < chunks; ++c) votes[c] = static_cast<double>(random() % 1000);
  double loss = 0, targets = 0;
  for (int i = 0; i < kMicro; ++i) {
    loss += votes[chunks + i] = std::uniform_real_distribution<>(0, 10)(random);
    targets += votes[chunks + kMicro + i] = static_cast<double>(random() % 100);
  }
  votes[votes.size() - 2] = 1;
  votes.back() = 3;
  double squares = 0;
  std::vector<double> of_unit;
  for (size_t u = 0, c = 0; u < sizes.size(); ++u) {
    double sum = 0;
    for (int64_t i = 0; i < sizes[u]; ++i) sum += votes[c++];
    of_unit.push_back(sum);
    squares += sum;
  }
  for (const ClipBy by : {ClipBy::kNorm, ClipBy::kUnit, ClipBy::kValue}) {
    for (const double scale : {1.0, 1024.0}) {
      for (const double clip : {0.0, 1e-3, 1e3}) {
        SCOPED_TRACE(testing::Message()
                     << "by " << static_cast<int>(by) << " scale " << scale << " clip " << clip);
        StepInputs inputs;
        inputs.loss_scale[0] = scale;
        inputs.clip = clip;
        inputs.clip_by = by;
        const Commit got = run(sizes, kMicro, votes, inputs);
        EXPECT_EQ(got.outcome.loss, loss);
        EXPECT_EQ(got.outcome.targets, targets);
        EXPECT_EQ(got.outcome.squares, squares);
        EXPECT_EQ(got.outcome.stop, 1);
        EXPECT_EQ(got.outcome.saving, 3);
        EXPECT_EQ(got.outcome.finite, 1);
        for (size_t u = 0; u < sizes.size(); ++u) {
          double factor = 1;
          if (by == ClipBy::kNorm) factor = clip_factor(std::sqrt(squares) / targets / scale, clip);
          if (by == ClipBy::kUnit)
            factor = clip_factor(std::sqrt(of_unit[u]) / targets / scale, clip);
          EXPECT_EQ(got.scales[u], static_cast<float>(factor / targets / scale)) << "unit " << u;
        }
      }
    }
  }
}

TEST_F(GpuCommit, FindsWhatIsNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                   kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> fine = {1, 2, 3, 4,
                                    5, 6, 0, 0};  // 4 chunks, a loss, a count, stop, saving
  EXPECT_EQ(run({1, 3}, 1, fine, {}).outcome.finite, 1);
  EXPECT_EQ(run({1, 3}, 1, fine, {}).outcome.stop, 0);
  EXPECT_EQ(run({1, 3}, 1, fine, {}).outcome.saving, 0);
  for (int place = 0; place < 6; ++place) {
    for (const double bad : {kInfinity, -kInfinity, kNan}) {
      std::vector<double> votes = fine;
      votes[place] = bad;
      EXPECT_EQ(run({1, 3}, 1, votes, {}).outcome.finite, 0) << "vote " << place << " is " << bad;
    }
  }
  // No target at all: sums are divided by 1.
  std::vector<double> none = fine;
  none[5] = 0;
  EXPECT_EQ(run({1, 3}, 1, none, {}).scales, (std::vector<float>{1, 1}));
}

}  // namespace
}  // namespace tutti
