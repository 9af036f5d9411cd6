// What becomes of a record that cannot be used.
#pragma once

#include <string>

#include "base/error.h"
#include "data/core/dataset.h"

namespace tutti {

/// Records that cannot be used: an Error at once, or counted, the first ten of them kept.
class BadRecords {
 public:
  BadRecords(bool skip, DataReport& report) : skip_(skip), report_(report) {}
  void add(const std::string& fault) {
    if (!skip_) throw Error(fault);
    leave_out(fault);
  }
  /// For records that the job asked to drop: never an Error.
  void leave_out(const std::string& fault) {
    constexpr size_t kKept = 10;
    report_.skipped += 1;
    if (report_.faults.size() < kKept) report_.faults.push_back(fault);
  }

 private:
  bool skip_;
  DataReport& report_;
};

}  // namespace tutti
