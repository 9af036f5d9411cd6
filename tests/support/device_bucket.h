// One bucket of one rank: its partials on a device, filled as reduction_case.h says, and what they must become.
#pragma once

#include <vector>

#include "device/reduction.h"
#include "support/reduction_case.h"

namespace tutti::testing_support {

class DeviceBucket {
 public:
  DeviceBucket(const ReductionCase& c, Device& device, DeviceGroup* group, const StateKernels& kernels)
      : case_(c),
        spec_(c.spec()),
        device_(device),
        me_(group == nullptr ? 0 : group->rank()),
        arena_(device.take(BufferKind::kGradient, arena_bytes(spec_))),
        reduction_(spec_, reinterpret_cast<float*>(arena_.data()), device, group, kernels) {}
  DeviceBucket(const DeviceBucket&) = delete;
  DeviceBucket& operator=(const DeviceBucket&) = delete;
  ~DeviceBucket() { device_.give_back(arena_); }

  void fill(Stream stream, uint64_t step) {
    const std::vector<Range> parts = subtrees(spec_.owned[me_], spec_.lanes);
    std::vector<float> values(spec_.partial_size);
    for (size_t p = 0; p < parts.size(); ++p) {
      for (int64_t i = 0; i < spec_.partial_size; ++i) {
        values[i] = tree_value(case_, step, parts[p].begin, parts[p].size(), i);
      }
      device_.copy(stream, partial(p), values.data(), values.size() * sizeof(float));
      device_.synchronise(stream);
    }
  }
  float* partial(size_t p) { return reinterpret_cast<float*>(arena_.data() + spec_.offsets[me_][p]); }
  const ReductionSpec& spec() const { return spec_; }
  DeviceReduction& reduction() { return reduction_; }

  /// Floats of the range of the result whose bits are not the tree's; `far`: that a sum in another order would not give
  /// either.
  struct Wrong {
    int64_t bits = 0, far = 0;
  };
  Wrong wrong(Stream stream, uint64_t step, Range range) {
    std::vector<float> result(spec_.result_size);
    device_.copy(stream, result.data(), reduction_.result(), result.size() * sizeof(float));
    device_.synchronise(stream);
    Wrong wrong;
    for (const Piece& piece : spec_.pieces) {
      for (int64_t k = 0; k < piece.size; ++k) {
        if (!range.contains(piece.dst + k)) continue;
        const Sum sum = expected(step, piece, k);
        const float got = result[piece.dst + k];
        if (std::bit_cast<uint32_t>(got) != std::bit_cast<uint32_t>(sum.tree)) ++wrong.bits;
        // At most one half-ulp of the largest partial sum for each addition. NaN is far from everything.
        if (!(std::fabs(got - sum.exact) <= case_.lanes * 3 * sum.magnitude * 0x1p-24)) ++wrong.far;
      }
    }
    return wrong;
  }

 private:
  struct Sum {
    float tree = 0;
    double exact = 0, magnitude = 0;
  };
  Sum expected(uint64_t step, const Piece& piece, int64_t k) const {
    Sum sum;
    for (size_t s = 0; s < piece.src.size(); ++s) {
      const float term = tree_value(case_, step, 0, case_.lanes, piece.src[s] + k);
      sum.tree = s == 0 ? term : sum.tree + term;
      for (int lane = 0; lane < case_.lanes; ++lane) {
        const double value = lane_value(case_.seed, step, lane, piece.src[s] + k);
        sum.exact += value;
        sum.magnitude += std::fabs(value);
      }
    }
    return sum;
  }

  ReductionCase case_;
  ReductionSpec spec_;
  Device& device_;
  int me_;
  std::span<std::byte> arena_;
  DeviceReduction reduction_;
};

}  // namespace tutti::testing_support
