#include "model/core/carver.h"

#include "base/error.h"

namespace tutti {

std::byte* Carver::take_bytes(int64_t count) {
  // Counting goes on without memory, so the same code gives a segment's sizes and its addresses.
  constexpr int64_t kStep = 256;
  const int64_t at = used_;
  used_ += (count + kStep - 1) / kStep * kStep;
  if (memory_ == nullptr) return nullptr;
  TUTTI_CHECK(used_ <= size_, "a segment uses {} bytes of the {} it asked for", used_, size_);
  return memory_ + at;
}

}  // namespace tutti
