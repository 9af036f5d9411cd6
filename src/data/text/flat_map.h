// A hash map from 64-bit keys to small values: open addressing in one array. The merges of a
// tokenizer are looked up in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti {

/// A map without removal. The key ~0 is reserved. Pointers and references to values are valid until
/// the next insertion.
template <typename Value>
class FlatMap {
 public:
  /// The value of a key, or null if there is none.
  const Value* find(uint64_t key) const {
    for (size_t slot = place(key);; slot = (slot + 1) & mask()) {
      if (slots_[slot].key == key) return &slots_[slot].value;
      if (slots_[slot].key == kNone) return nullptr;
    }
  }
  /// The value of a key. If there is none, a value-initialised one is inserted.
  Value& operator[](uint64_t key) {
    if ((used_ + 1) * 2 > slots_.size()) grow();
    return insert(key);
  }
  size_t size() const { return used_; }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  struct Slot {
    uint64_t key = kNone;
    Value value{};
  };
  size_t mask() const { return slots_.size() - 1; }
  size_t place(uint64_t key) const {
    const uint64_t mixed = key * 0x9E3779B97F4A7C15u;
    return (mixed ^ mixed >> 32) & mask();
  }
  Value& insert(uint64_t key) {
    size_t slot = place(key);
    while (slots_[slot].key != key && slots_[slot].key != kNone) slot = (slot + 1) & mask();
    if (slots_[slot].key == kNone) {
      slots_[slot].key = key;
      ++used_;
    }
    return slots_[slot].value;
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    used_ = 0;
    for (const Slot& slot : old) {
      if (slot.key != kNone) insert(slot.key) = slot.value;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(16);
  size_t used_ = 0;
};

}  // namespace tutti
