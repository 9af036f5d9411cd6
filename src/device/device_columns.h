// Exchanges between the columns of a model on a device: what comm/exchange.h does on the host, put
// on a stream. All addresses are worked out when an exchange is made, so a run can be captured.
#pragma once

#include <vector>

#include "device/group.h"
#include "device/placed.h"
#include "device/state_kernels.h"
#include "grid/grid.h"

namespace tutti {

/// One exchange. Device, group, kernels and arrays must outlive it.
class DeviceColumns {
 public:
  /// The columns and who has them. `group` is that of the tensor axis, where member t has columns
  /// lanes_of(t, T, S); null for one member alone.
  struct Members {
    int columns = 1;
    DeviceGroup* group = nullptr;
    Device& device;
    const StateKernels& kernels;
  };
  /// Every member ends with all columns' parts in `whole`, in column order. `parts` are my
  /// columns', of `bytes` each; a part may already be in its place in `whole`.
  static DeviceColumns gather(const Members& members, const std::vector<std::byte*>& parts,
                              int64_t bytes, std::byte* whole);
  /// Column c ends with the c-th of S equal parts of the sum over the tree of all columns' arrays
  /// of `floats`, in `precision`. `sums` are my columns' arrays, undefined afterwards; `parts` is
  /// where my parts go, apart from the sums. `scratch` has ColumnExchange::scratch_bytes().
  static DeviceColumns scatter(const Members& members, const std::vector<float*>& sums,
                               int64_t floats, const std::vector<std::byte*>& parts,
                               std::byte* scratch, Precision precision);
  void run(Stream stream);

 private:
  /// The last fold of a column's part.
  struct PartFold : PlacedFold {
    void* narrow = nullptr;  // where the sum goes in 16 bits, if it does
  };
  explicit DeviceColumns(const Members& members) : m_(members) {}
  int ranks() const { return m_.group != nullptr ? m_.group->size() : 1; }
  int me() const { return m_.group != nullptr ? m_.group->rank() : 0; }
  Range columns_of(int member) const { return lanes_of(member, ranks(), m_.columns); }

  Members m_;
  Precision precision_ = Precision::kFloat32;
  std::vector<PlacedCopy> own_;
  std::vector<PlacedFold> before_;  // folds before the exchange
  std::vector<PartFold> after_;
  std::vector<DeviceSend> sends_;
  std::vector<DeviceReceive> receives_;
};

}  // namespace tutti
