// Every kernel has the same bits on every code path.
#include <random>

#include "base/fp_mode.h"
#include "kernel_case.h"
#include "support/kernel_trials.h"

namespace tutti::test {
namespace {

class EveryCodePath : public testing::TestWithParam<KernelTrial> {};

TEST_P(EveryCodePath, HasTheBitsOfTheOthers) {
  set_fp_mode();
  constexpr int64_t kLeast = 2'000'000;  // values compared
  int64_t compared = 0;
  for (uint64_t seed = 1; compared < kLeast; ++seed) {
    const Results one = GetParam().run(CodePath::kPortable, seed);
    for (const CodePath path : runnable_paths())
      ASSERT_EQ(difference(one, GetParam().run(path, seed)), "")
          << name_of(path) << ", seed " << seed;
    for (const Floats& array : one.arrays()) compared += static_cast<int64_t>(array.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCodePath, testing::ValuesIn(kKernelTrials),
                         [](const auto& info) { return info.param.name; });

// Products next to half of the last bit of what they are added to: there a sum that is rounded to
// double first would often be another one.
TEST(EveryCodePath, RoundsAFusedMultiplyAddOnce) {
  set_fp_mode();
  std::mt19937_64 engine(7);
  constexpr int64_t kColumns = 1024, kRounds = 1000;
  int64_t twice = 0;  // sums that rounding twice would have changed
  for (int64_t round = 0; round < kRounds; ++round) {
    const auto near_one = [&] {
      return 1 + static_cast<float>(static_cast<int64_t>(engine() % 9) - 4) * 0x1p-23f;
    };
    // The second row of b times x is added to its first.
    const float x = near_one(), a[] = {1, x};
    Floats b(2 * kColumns), expected(kColumns);
    for (int64_t j = 0; j < kColumns; ++j) {
      const auto exponent = static_cast<int>(engine() % 200) - 90;
      const float term =
          std::ldexp(1 + static_cast<float>(engine() % (1 << 23)) * 0x1p-23f, exponent);
      const float y = std::ldexp(near_one(), exponent - 24) * (engine() % 2 == 0 ? 1.0f : -1.0f);
      b[j] = engine() % 2 == 0 ? term : -term;
      b[kColumns + j] = y;
      expected[j] = std::fma(x, y, b[j]);
      const double sum =
          static_cast<double>(x) * static_cast<double>(y) + static_cast<double>(b[j]);
      twice += static_cast<float>(sum) != expected[j] ? 1 : 0;
    }
    for (const CodePath path : runnable_paths()) {
      const Matmul& m = kernels(path).matmul;
      Floats work(static_cast<size_t>(m.work(1, kColumns, 2)) + 16), got(kColumns);
      m.nn(a, b.data(), got.data(), 1, kColumns, 2, work.data());
      ASSERT_TRUE(same_bits(got, expected)) << name_of(path) << ", round " << round;
    }
  }
  EXPECT_GT(twice, kRounds);
}

// Plans name the sizes of scratch, and the ranks of a run may use several code paths.
TEST(EveryCodePath, WantsAsMuchScratch) {
  Trial draw(3);
  for (int trial = 0; trial < 10000; ++trial) {
    const int64_t m = draw.size(300), n = draw.size(1000), k = draw.size(1000),
                  kv = 1 + draw.below(2);
    const AttentionShape shape{1, m, kv * (1 + draw.below(3)), 2 * draw.size(80), kv};
    const Kernels& expected = kernels(CodePath::kPortable);
    for (const CodePath path : runnable_paths()) {
      ASSERT_EQ(kernels(path).matmul.work(m, n, k), expected.matmul.work(m, n, k))
          << name_of(path) << ": " << m << " x " << n << " x " << k;
      ASSERT_EQ(kernels(path).attention_work(shape), expected.attention_work(shape))
          << name_of(path) << ": " << m << " x " << shape.dim;
    }
  }
}

}  // namespace
}  // namespace tutti::test
