// A kernel of the table run on both sides: on the CPU in float32, on the GPU in A, from the same
// values (rounded to A). An operation is written once, as a function of a side.
#pragma once

#include <fmt/format.h>

#include <memory>

#include "base/processor.h"
#include "gpu/compare.h"

namespace tutti {

using Floats = std::vector<float>;

/// A result, and whether it is one of activations (of type A).
struct Result {
  Floats values;
  bool activations;
};

class CpuSide {
 public:
  explicit CpuSide() : table(kernels(fastest_path())) {}
  const Kernels& table;

  float* array(const Floats& values, bool is_result = false) {
    return keep(values, is_result, true);
  }
  float* floats(const Floats& values) { return keep(values, false, false); }
  float* result(int64_t n) { return keep(Floats(static_cast<size_t>(n), NAN), true, true); }
  float* float_result(int64_t n) { return keep(Floats(static_cast<size_t>(n), NAN), true, false); }
  const int64_t* ids(const std::vector<int64_t>& values) { return values.data(); }
  std::vector<Result> results() const {
    std::vector<Result> all;
    for (const auto& [result, is_result] : kept_) {
      if (is_result) all.push_back(*result);
    }
    return all;
  }

 private:
  float* keep(const Floats& values, bool is_result, bool activations) {
    kept_.emplace_back(std::make_unique<Result>(Result{values, activations}), is_result);
    return kept_.back().first->values.data();
  }
  std::vector<std::pair<std::unique_ptr<Result>, bool>> kept_;
};

/// Every array is `shift` elements off an aligned place.
template <class A>
class GpuSide {
 public:
  GpuSide(const DeviceLibrary& library, Device& device, Stream stream, int64_t shift)
      : table(table_of<A>(library)), device_(device), stream_(stream), shift_(shift) {}
  const KernelsFor<A>& table;

  A* array(const Floats& values, bool is_result = false) {
    return keep<A>(values, is_result, activations_);
  }
  float* floats(const Floats& values) { return keep<float>(values, false, floats_); }
  A* result(int64_t n) { return keep<A>(Floats(static_cast<size_t>(n), NAN), true, activations_); }
  float* float_result(int64_t n) {
    return keep<float>(Floats(static_cast<size_t>(n), NAN), true, floats_);
  }
  const int64_t* ids(const std::vector<int64_t>& values) {
    ids_.push_back(std::make_unique<GpuArray<int64_t>>(device_, stream_, values));
    return ids_.back()->data();
  }
  std::vector<Result> results() const {
    std::vector<Result> all;
    for (const auto& [activations, index] : order_) {
      all.push_back(
          {activations ? read(*activations_[index]) : read(*floats_[index]), activations});
    }
    return all;
  }

 private:
  template <class T>
  T* keep(const Floats& values, bool is_result, std::vector<std::unique_ptr<GpuArray<T>>>& place) {
    std::vector<T> shifted(static_cast<size_t>(shift_), static_cast<T>(NAN));
    shifted.insert(shifted.end(), values.begin(), values.end());
    if (is_result)
      order_.emplace_back(static_cast<const void*>(&place) == &activations_, place.size());
    place.push_back(std::make_unique<GpuArray<T>>(device_, stream_, shifted));
    return place.back()->data() + shift_;
  }
  template <class T>
  Floats read(const GpuArray<T>& array) const {
    const std::vector<T> values = array.get();
    return {values.begin() + shift_, values.end()};
  }

  Device& device_;
  Stream stream_;
  int64_t shift_;
  std::vector<std::unique_ptr<GpuArray<A>>> activations_;
  std::vector<std::unique_ptr<GpuArray<float>>> floats_;
  std::vector<std::unique_ptr<GpuArray<int64_t>>> ids_;
  std::vector<std::pair<bool, size_t>> order_;
};

/// How a result may differ from the CPU's.
constexpr double kExact = 0;  ///< the same operations: not at all, once the CPU's is rounded to A
constexpr double kNotCompared = -1;

template <class A>
void expect_close(const Result& got, const Result& want, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.values.size(), want.values.size()) << what;
  if (tolerance == kNotCompared) return;
  // inputs are of that size: what is far smaller comes from larger terms
  double worst = 0, top = 1;
  size_t at = 0;
  for (size_t i = 0; i < got.values.size(); ++i) {
    double w = want.values[i];
    if (tolerance == kExact && want.activations)
      w = static_cast<float>(static_cast<A>(want.values[i]));
    const double distance = std::abs(got.values[i] - w);
    if (!(distance <= worst)) {  // a NaN stays the worst
      worst = distance;
      at = i;
    }
    top = std::max(top, std::abs(w));
    if (std::isnan(worst)) break;
  }
  // A result of activations is rounded to A once more.
  const double allowed =
      tolerance == kExact ? 0 : (tolerance + (want.activations ? kRounding<A> : 0)) * top;
  EXPECT_LE(worst, allowed) << what << ": element " << at << " of " << got.values.size() << " is "
                            << got.values[at] << ", on the CPU " << want.values[at]
                            << "; the largest is " << top;
}

/// Operations on both sides.
template <class A>
class RowTest : public GpuTest {
 protected:
  Floats values(int64_t n, float scale = 1) {
    Floats all = random_floats(random, static_cast<size_t>(n), scale);
    for (float& v : all) v = static_cast<float>(static_cast<A>(v));
    return all;
  }

  /// Runs the operation on both sides; one tolerance for each of its results, in the order it asks
  /// for them.
  template <class Op>
  void compare(const std::string& what, const std::vector<double>& tolerances, Op&& op) {
    SCOPED_TRACE(fmt::format("{}, seed {}", what, kSeed));
    CpuSide cpu;
    op(cpu);
    const std::vector<Result> want = cpu.results(), got = on_gpu(op, 0), again = on_gpu(op, 0),
                              shifted = on_gpu(op, 1);
    ASSERT_EQ(want.size(), tolerances.size());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      expect_close<A>(got[i], want[i], tolerances[i], fmt::format("result {}", i));
      expect_same_bits(again[i].values, got[i].values, fmt::format("result {} repeated", i));
      expect_same_bits(shifted[i].values, got[i].values, fmt::format("result {} unaligned", i));
    }
  }

  template <class Op>
  std::vector<Result> on_gpu(Op&& op, int64_t shift = 0) {
    GpuSide<A> side(library, *device, stream, shift);
    op(side);
    return side.results();
  }

  /// Results of activations of op(side, rows) do not depend on the number of rows.
  template <class Op>
  void compare_rows(const std::string& what, int64_t rows, int64_t fewer, Op&& op) {
    const std::vector<Result> all = on_gpu([&](auto& side) { op(side, rows); });
    const std::vector<Result> some = on_gpu([&](auto& side) { op(side, fewer); });
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].activations) continue;
      const Floats first(all[i].values.begin(),
                         all[i].values.begin() + static_cast<int64_t>(some[i].values.size()));
      expect_same_bits(some[i].values, first,
                       fmt::format("{}: result {} of {} rows", what, i, fewer));
    }
  }

  std::mt19937_64 random{kSeed};
};

}  // namespace tutti
