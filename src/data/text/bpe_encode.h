// Turns words into tokens: by merges in the order of their ranks, and by a bounded cache of words
// that were met before.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/text/bpe.h"
#include "data/text/flat_map.h"
#include "data/text/word_cache.h"

namespace tutti {

/// Immutable after construction. Any number of threads may use one encoder, each with a cache of
/// its own.
class BpeEncoder {
 public:
  /// `bpe` must have a token for every byte.
  explicit BpeEncoder(const Bpe& bpe);
  /// Appends the tokens of all words of the text. The time for a word of n bytes grows as n log n.
  void encode(std::string_view text, WordCache& cache, std::vector<int32_t>& tokens) const;

 private:
  struct Found {
    uint32_t rank = kNever;
    int32_t result = -1;
  };
  static constexpr uint32_t kNever = ~uint32_t{0};
  /// length in bytes up to which looking through all pairs of a word beats a heap
  static constexpr size_t kShort = 48;

  Found find(int32_t left, int32_t right) const;
  int merge_short(std::string_view word, int32_t* tokens) const;
  void merge_long(std::string_view word, std::vector<int32_t>& tokens) const;
  template <typename Table>
  void append(std::string_view word, size_t readable, Table& table,
              std::vector<int32_t>& tokens) const;

  std::array<int32_t, 256> bytes_{};
  FlatMap<Found> merges_;
};

}  // namespace tutti
