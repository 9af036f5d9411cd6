// One rank of a SumCase on a device: its contributions, its sums and copies, and what they must
// become.
#pragma once

#include <memory>
#include <vector>

#include "device/device_transfers.h"
#include "support/sum_case.h"

namespace tutti::testing_support {

class DeviceParcel {
 public:
  /// All rounds of the case. `group`: null for one rank alone.
  DeviceParcel(const SumCase& c, Device& device, DeviceGroup* group, const StateKernels& kernels)
      : case_(c),
        device_(device),
        kernels_(kernels),
        me_(group == nullptr ? 0 : group->rank()),
        copies_(c.copies()),
        arena_(device.take(BufferKind::kGradient, static_cast<size_t>(c.arena_bytes()))) {
    for (size_t round = 0; round < sum_rounds(c.options).size(); ++round)
      transfers_.push_back(c.transfer(static_cast<int>(round)));
    int64_t scratch = 0;
    for (const SumTransfer& t : transfers_)
      scratch = std::max(scratch, DeviceSum::scratch_bytes(t, me_));
    if (scratch > 0) scratch_ = device.take(BufferKind::kMessage, static_cast<size_t>(scratch));
    make_levels();
    for (const SumTransfer& t : transfers_)
      sums_.push_back(std::make_unique<DeviceSum>(t, me_, arena_.data(), levels_, scratch_.data(),
                                                  group, kernels_));
    if (c.made_in_place() && me_ < c.data_ranks())
      gather_ = std::make_unique<DeviceCopies>(
          copies_, me_, arena_.data(), [this](int) { return arena_.data(); }, device, group);
  }
  DeviceParcel(const DeviceParcel&) = delete;
  DeviceParcel& operator=(const DeviceParcel&) = delete;
  ~DeviceParcel() {
    for (std::span<std::byte> stack : stacks_) device_.give_back(stack);
    if (!scratch_.empty()) device_.give_back(scratch_);
    device_.give_back(arena_);
  }

  /// This rank's contributions of a round, and NaN.
  void fill(Stream stream, uint64_t step, int round = 0) {
    std::vector<float> values(arena_.size() / sizeof(float));
    case_.fill(me_, step, round, values);
    device_.copy(stream, arena_.data(), values.data(), values.size() * sizeof(float));
    device_.synchronise(stream);
  }
  int rounds() const { return static_cast<int>(sums_.size()); }
  void sum(Stream stream, int round = 0) { sums_[static_cast<size_t>(round)]->run(stream); }
  /// Gathers all slices of all units, after a sum in place.
  void gather(Stream stream) { gather_->run(stream); }

  int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_.size()); }
  int64_t arena_bytes() const { return static_cast<int64_t>(arena_.size()); }
  const std::byte* arena() const { return arena_.data(); }

  /// Floats whose bits are not the tree's; `far`: that a sum in another order would not give
  /// either.
  struct Wrong {
    int64_t bits = 0, far = 0;
  };
  /// Of what this rank owns, where it makes it.
  Wrong wrong_slices(Stream stream, uint64_t step) {
    Wrong wrong;
    for (size_t u = 0; u < case_.units.size(); ++u) {
      const Range slice = transfers_[0].units[u].slices[static_cast<size_t>(me_)];
      if (!slice.empty()) count(stream, step, u, slice, levels_[u][0], wrong);
    }
    return wrong;
  }
  /// How much is wrong in this rank's first terms, over all units.
  Wrong wrong(Stream stream, uint64_t step) {
    Wrong wrong;
    for (size_t u = 0; u < case_.units.size(); ++u)
      count(stream, step, u, {0, case_.units[u].size}, first_term(u), wrong);
    return wrong;
  }

 private:
  float* first_term(size_t unit) const {
    return reinterpret_cast<float*>(arena_.data() + case_.offset(me_, 0, unit, 0));
  }

  void make_levels() {
    const SumTransfer& t = transfers_[0];
    for (size_t u = 0; u < t.units.size(); ++u) {
      const Range slice = t.units[u].slices[static_cast<size_t>(me_)];
      auto& levels = levels_.emplace_back();
      for (int l = 0; l < t.levels && !slice.empty(); ++l) {
        if (case_.made_in_place()) {
          levels.push_back(first_term(u) + slice.begin);
          continue;
        }
        const auto bytes = static_cast<size_t>(level_floats(t, t.units[u], me_)) * sizeof(float);
        stacks_.push_back(device_.take(BufferKind::kGradient, bytes));
        levels.push_back(reinterpret_cast<float*>(stacks_.back().data()));
      }
    }
  }

  void count(Stream stream, uint64_t step, size_t unit, Range range, const float* at,
             Wrong& wrong) {
    std::vector<float> got(static_cast<size_t>(range.size()));
    device_.copy(stream, got.data(), at, got.size() * sizeof(float));
    device_.synchronise(stream);
    for (int64_t i = range.begin; i < range.end; ++i) {
      const WantedSum want = case_.wanted(step, unit, i);
      wrong.bits += want.has_bits(got[static_cast<size_t>(i - range.begin)]) ? 0 : 1;
      wrong.far += want.is_close(got[static_cast<size_t>(i - range.begin)]) ? 0 : 1;
    }
  }

  const SumCase& case_;
  Device& device_;
  const StateKernels kernels_;
  const int me_;
  const CopyTransfer copies_;
  std::vector<SumTransfer> transfers_;
  std::span<std::byte> arena_, scratch_;
  std::vector<std::span<std::byte>> stacks_;
  std::vector<std::vector<float*>> levels_;
  std::vector<std::unique_ptr<DeviceSum>> sums_;
  std::unique_ptr<DeviceCopies> gather_;
};

}  // namespace tutti::testing_support
