// Memory that ranks share: owners of mappings, and memfd segments whose pages are all allocated
// when they are made. So memory that is not there is an Error at the start, never a SIGBUS in the
// middle of a step.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/file.h"
#include "net/transport.h"

namespace tutti {

/// Owns a mapping.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* data() const { return static_cast<std::byte*>(address_); }
  size_t size() const { return bytes_; }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

/// A memfd with its owner's mapping. Nameless: the kernel frees it with the last descriptor and
/// mapping, however they end.
struct SharedMemory {
  Fd fd;
  Mapping mapping;
};

/// The window of thread ranks (plain memory of one process) or of process ranks (a segment that
/// others map). The transport knows which of the two it is.
class MappedWindow final : public Window {
 public:
  explicit MappedWindow(SharedMemory memory) : memory_(std::move(memory)) {}
  std::span<std::byte> bytes() const override {
    return {memory_.mapping.data(), memory_.mapping.size()};
  }
  const Fd& fd() const { return memory_.fd; }  ///< none for memory of one process

 private:
  const SharedMemory memory_;
};
/// The window `given`, or a new one of `bytes` bytes that others can map if it is `shared`. Throws
/// Error where the given one is of another kind or size.
std::shared_ptr<MappedWindow> window_for(const std::shared_ptr<Window>& given, size_t bytes,
                                         bool shared, const std::string& what);

/// Zeroed pages for this process alone, all of them present. The Error that is thrown when they
/// cannot be had names `what`.
Mapping allocate_private(size_t bytes, const std::string& what);
/// A segment whose pages are all present and whose size is sealed, so that no later access can end
/// in SIGBUS. If `owner_writes_alone`, the kernel refuses every later writable mapping of it.
SharedMemory allocate_shared(size_t bytes, bool owner_writes_alone, const std::string& what);
/// Maps a segment that somebody else made; an Error unless it has `bytes` bytes and is sealed.
Mapping map_shared(int fd, size_t bytes, bool writable, const std::string& what);

/// An Error that says how much is missing unless `bytes` are available.
void check_available(size_t bytes, const std::string& what);

}  // namespace tutti
