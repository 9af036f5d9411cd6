// How values of images and arrays are scaled, channel by channel, by statistics of the
// training records.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/exact_sum.h"
#include "config/enums.h"
#include "data/core/dataset.h"

namespace tutti {

/// A scaled value is value * factor + shift.
struct Scaling {
  float factor = 1, shift = 0;
};

/// Scales a record that is channels of equal size, each by its own scaling (or all by the
/// only one).
template <typename T>
void scale_row(const T* from, float* to, int64_t size, const std::vector<Scaling>& scaling) {
  const int64_t plane = size / static_cast<int64_t>(scaling.size());
  for (const Scaling& s : scaling) {
    for (int64_t i = 0; i < plane; ++i) to[i] = static_cast<float>(from[i]) * s.factor + s.shift;
    from += plane;
    to += plane;
  }
}

/// Sums over one channel of some records. They are exact, so the order of records does not matter.
/// Moments travel between ranks as bytes.
struct Moments {
  ExactSum sum, squares;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  int64_t count = 0;
  void add(double value, int64_t times = 1);
  void merge(const Moments& other);
};

/// Counts how often each value of a byte occurs in each channel.
class ByteCounts {
 public:
  explicit ByteCounts(int64_t channels) : counts_(static_cast<size_t>(channels) * 256) {}
  /// Counts one record: its channels' planes of `plane` bytes, one after the other.
  void add(const uint8_t* values, int64_t plane);
  std::vector<Moments> moments() const;

 private:
  std::vector<int64_t> counts_;
};

/// Whether a data.scale looks at the records: standardise and min-max do.
bool needs_moments(ValueScale scale);
/// The scaling of every channel. Collective if it needs moments: `mine` are those of this rank's
/// share of the training records. `lines` say what was found.
std::vector<Scaling> scaling_from(ValueScale scale, std::vector<Moments> mine,
                                  const DataGroup& group, std::vector<std::string>& lines);

}  // namespace tutti
