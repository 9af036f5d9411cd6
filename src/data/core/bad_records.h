// What becomes of records that cannot be used, by data.bad.
#pragma once

#include <string>

#include "base/error.h"
#include "data/core/dataset.h"

namespace tutti {

/// Takes the faults of records that cannot be used: the first throws an Error, or (data.bad =
/// "skip") all are counted and the first ten of them kept.
class BadRecords {
 public:
  BadRecords(bool skip, DataReport& report) : skip_(skip), report_(report) {}
  /// A malformed record: `fault` says where and what.
  void add(const std::string& fault) {
    if (!skip_) throw Error(fault);
    leave_out(fault);
  }
  /// A record that the job asked to drop. It never throws.
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
