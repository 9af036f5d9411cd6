// Exchanges between the columns of a tensor-sliced model on a device: comm/exchange.h's job, put on
// a stream. All addresses are worked out in the constructor.
#pragma once

#include <vector>

#include "device/group.h"
#include "device/placed.h"
#include "device/state_kernels.h"
#include "grid/grid.h"

namespace tutti {

class DeviceColumns {
 public:
  /// The columns and who has them. `group`: of the tensor axis, member t has lanes_of(t, T, S);
  /// null for one alone.
  struct Members {
    int columns = 1;
    DeviceGroup* group = nullptr;
    Device& device;
    const StateKernels& kernels;
  };
  /// Every member ends with all columns' parts in `whole`, in column order. `parts`: my columns',
  /// `bytes` each; one may lie where it belongs in `whole`.
  static DeviceColumns gather(const Members& members, const std::vector<std::byte*>& parts,
                              int64_t bytes, std::byte* whole);
  /// Column c ends with the c-th of S equal parts of the sum over the tree of all columns' arrays
  /// of `floats`, in `precision`. `sums`: my columns', scratch after it; `parts`: where mine go,
  /// apart from them. `scratch`: ColumnExchange::scratch_bytes().
  static DeviceColumns scatter(const Members& members, const std::vector<float*>& sums,
                               int64_t floats, const std::vector<std::byte*>& parts,
                               std::byte* scratch, Precision precision);
  void run(Stream stream);

 private:
  /// The end of a column's part.
  struct PartFold : PlacedFold {
    void* narrow = nullptr;  // where the sum goes in 16 bits
  };
  explicit DeviceColumns(const Members& members) : m_(members) {}
  int ranks() const { return m_.group != nullptr ? m_.group->size() : 1; }
  int me() const { return m_.group != nullptr ? m_.group->rank() : 0; }
  Range columns_of(int member) const { return lanes_of(member, ranks(), m_.columns); }

  Members m_;
  Precision precision_ = Precision::kFloat32;
  std::vector<PlacedCopy> own_;
  std::vector<PlacedFold> before_;  // the exchange
  std::vector<PartFold> after_;
  std::vector<DeviceSend> sends_;
  std::vector<DeviceReceive> receives_;
};

}  // namespace tutti
