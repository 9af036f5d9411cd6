// A control block is one shared mapping: the struct, then a part for each rank.
#include "launch/control.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <new>

#include "base/error.h"

namespace tutti {

uint64_t Control::signs() {
  uint64_t all = 0;
  for (const Rank& rank : ranks()) all += rank.signs.load(std::memory_order_relaxed);
  return all;
}

SharedControl::SharedControl(int ranks) : memory_(::memfd_create("tutti-control", MFD_CLOEXEC)) {
  const size_t bytes = sizeof(Control) + sizeof(Control::Rank) * static_cast<size_t>(ranks);
  if (!memory_ || ::ftruncate(memory_.get(), static_cast<off_t>(bytes)) != 0)
    throw_errno("make", "the launcher's control block");
  map(bytes);
  new (control_) Control;
  control_->size = ranks;
  std::uninitialized_value_construct_n(control_->ranks().data(), ranks);
}

SharedControl::SharedControl(Fd memory) : memory_(std::move(memory)) {
  struct stat status {};
  if (::fstat(memory_.get(), &status) != 0) throw_errno("read", "the launcher's control block");
  map(static_cast<size_t>(status.st_size));
}

void SharedControl::map(size_t bytes) {
  bytes_ = bytes;
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (at == MAP_FAILED) throw_errno("map", "the launcher's control block");
  control_ = static_cast<Control*>(at);
}

SharedControl::~SharedControl() {
  if (control_ != nullptr) ::munmap(control_, bytes_);
}

}  // namespace tutti
