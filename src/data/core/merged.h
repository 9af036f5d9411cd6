// Joins what every rank of a group summed over its share of the records.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "data/core/dataset.h"

namespace tutti {

/// Joins `mine` of all ranks element by element, in rank order, by T::merge, starting from T{}. The
/// elements travel as bytes. Collective. Throws Error if the ranks have different numbers of them.
template <typename T>
std::vector<T> merged(std::vector<T> mine, const DataGroup& group) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (group.size == 1 || mine.empty()) return mine;
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T));
  std::vector<T> all(mine.size());
  for (const std::string& theirs : group.gather(bytes)) {
    if (theirs.size() != bytes.size()) throw Error("the ranks do not read the same columns");
    std::vector<T> parts(mine.size());
    std::memcpy(static_cast<void*>(parts.data()), theirs.data(), theirs.size());
    for (size_t k = 0; k < all.size(); ++k) all[k].merge(parts[k]);
  }
  return all;
}

}  // namespace tutti
