// An arena counts what is taken from it, gaps included, and not what was mapped for it: so accounts
// agree with the plan's sizes.
#include "exec/accounts.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/pages.h"

namespace tutti {

namespace {

// what a GPU's kernels ask of an array; a multiple of the host's cache lines
constexpr size_t kStep = 256;

// Other threads may raise the peak meanwhile, so the new value is stored only over a lower one.
void raise_to(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < value && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

void Accounts::add(BufferKind kind, int64_t bytes) {
  const int k = static_cast<int>(kind);
  raise_to(peak_[k], current_[k].fetch_add(bytes, std::memory_order_relaxed) + bytes);
  raise_to(peak_total_, total_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

int64_t Accounts::current(BufferKind kind) const { return current_[static_cast<int>(kind)].load(); }
int64_t Accounts::peak(BufferKind kind) const { return peak_[static_cast<int>(kind)].load(); }
int64_t Accounts::peak_total() const { return peak_total_.load(); }

void Accounts::reset_peaks() {
  for (int k = 0; k < kBufferKinds; ++k) peak_[k].store(current_[k].load());
  peak_total_.store(total_.load());
}

Arena::Arena(BufferKind kind, size_t bytes, Accounts& accounts, MemorySource* source)
    : kind_(kind), owned_(true), source_(source), accounts_(accounts) {
  if (bytes == 0) return;

  if (source != nullptr) {
    memory_ = source->take(kind, bytes);
    return;
  }

  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(fmt::format("cannot get {} bytes of {} memory: {}", bytes, kind_name(kind),
                            std::strerror(errno)));
  }
  memory_ = {static_cast<std::byte*>(memory), bytes};
  advise_huge_pages(memory, bytes);
}

Arena::Arena(BufferKind kind, std::span<std::byte> memory, Accounts& accounts)
    : kind_(kind), memory_(memory), accounts_(accounts) {
  TUTTI_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kStep == 0,
              "an arena's memory must begin on a {}-byte border", kStep);
}

Arena::~Arena() {
  accounts_.add(kind_, -static_cast<int64_t>(used_));
  if (!owned_ || memory_.empty()) return;
  if (source_ != nullptr) {
    source_->give_back(memory_);
  } else {
    munmap(memory_.data(), memory_.size());
  }
}

std::span<std::byte> Arena::take(size_t bytes) {
  if (bytes > left()) {
    throw Error(fmt::format("the {} arena of {} bytes has {} left, {} are wanted", kind_name(kind_),
                            memory_.size(), left(), bytes));
  }

  const std::span<std::byte> taken = memory_.subspan(used_, bytes);
  // The next memory starts on a border; the last may end short of one.
  const size_t with_gap = std::min(left(), (bytes + kStep - 1) / kStep * kStep);
  used_ += with_gap;
  accounts_.add(kind_, static_cast<int64_t>(with_gap));
  return taken;
}

std::span<float> Arena::take_floats(int64_t n) {
  const std::span<std::byte> bytes = take(static_cast<size_t>(n) * sizeof(float));
  return {reinterpret_cast<float*>(bytes.data()), static_cast<size_t>(n)};
}

}  // namespace tutti
