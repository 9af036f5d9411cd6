// The tokens of words that were met before: two tables of fixed size with one or two cache lines
// per word, each word in one of two neighbouring slots. A text full of new words costs time, but
// never memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti {

/// A word of at most 8 * Longs bytes, padded with zeros, which is compared as whole numbers.
template <int Longs>
struct WordKey {
  std::array<uint64_t, Longs> bytes;

  /// `readable` says how many bytes may be read from the word's first on. If they are enough, the
  /// key is one fixed copy and a mask, which is faster than a copy of unknown length.
  WordKey(std::string_view word, size_t readable) {
    if (readable >= sizeof(bytes)) {
      std::memcpy(bytes.data(), word.data(), sizeof(bytes));
      const size_t whole = word.size() / 8;
      for (size_t i = whole; i < Longs; ++i) {
        bytes[i] &= i == whole ? (uint64_t{1} << (word.size() % 8 * 8)) - 1 : 0;
      }
    } else {
      bytes = {};
      std::memcpy(bytes.data(), word.data(), word.size());
    }
  }
  uint64_t hash(size_t length) const {
    uint64_t h = length;
    for (const uint64_t part : bytes) {
      h = (h ^ part) * 0x9E3779B97F4A7C15u;
      h ^= h >> 29;
    }
    return h;
  }
};

/// A table of words of up to 8 * Longs bytes and `Tokens` tokens.
template <int Longs, int Tokens>
class WordTable {
 public:
  static constexpr size_t kLongest = 8 * Longs;
  static constexpr int kMostTokens = Tokens;
  using Key = WordKey<Longs>;
  struct Slot {
    std::array<uint64_t, Longs> key{};
    uint16_t length = 0;  ///< of the word; 0 if the slot is free
    uint16_t count = 0;
    std::array<int32_t, Tokens> tokens{};
  };

  explicit WordTable(int bits) : slots_(size_t{1} << bits) {}

  const Slot* find(const Key& key, size_t length, uint64_t hash) const {
    const size_t at = hash & (slots_.size() - 1);
    if (is(slots_[at], key, length)) return &slots_[at];
    const Slot& other = slots_[at ^ 1];
    return is(other, key, length) ? &other : nullptr;
  }
  /// Puts a word into its slot. The word that was there moves to the neighbouring slot, and the
  /// word from there is forgotten.
  void insert(const Key& key, size_t length, uint64_t hash, const int32_t* tokens, int count) {
    Slot& slot = slots_[hash & (slots_.size() - 1)];
    if (slot.length != 0) slots_[(hash & (slots_.size() - 1)) ^ 1] = slot;
    slot.key = key.bytes;
    slot.length = static_cast<uint16_t>(length);
    slot.count = static_cast<uint16_t>(count);
    std::copy_n(tokens, count, slot.tokens.begin());
  }

 private:
  static bool is(const Slot& slot, const Key& key, size_t length) {
    return slot.length == length && slot.key == key.bytes;
  }
  std::vector<Slot> slots_;
};

/// The two tables, for short and for middle words. One thread at a time may use it.
class WordCache {
 public:
  using Short = WordTable<2, 11>;
  using Middle = WordTable<6, 19>;
  static_assert(sizeof(Short::Slot) == 64 && sizeof(Middle::Slot) == 128);
  Short short_words{15};
  Middle middle_words{13};
};

}  // namespace tutti
