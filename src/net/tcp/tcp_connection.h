// One socket of a tcp transport: what is half read and half written on it. Both halves move on
// without blocking and without locks.
#pragma once

#include <array>
#include <string>

#include "base/file.h"
#include "net/inbox.h"
#include "net/tcp/tcp_wire.h"

namespace tutti {

enum class IoResult { kDone, kBlocked, kClosed };

/// The writing half. It belongs to the I/O thread while busy(), and otherwise to whoever holds the
/// transport's lock.
class PieceWriter {
 public:
  bool busy() const { return op_ != nullptr; }
  void begin(PostedOp& op, const PieceHead& head);
  /// kDone: the piece has left; busy() stays true until end(). kClosed: errno says why.
  IoResult write(int socket);
  /// Accounts for the piece in its operation. Returns whether the operation has ended with it and
  /// somebody awaits that. Called under the lock.
  bool end();
  void abandon() { op_ = nullptr; }

 private:
  PostedOp* op_ = nullptr;
  PieceHead head_;
  size_t done_ = 0;  // bytes of head and piece that have left
};

/// The reading half; belongs to the I/O thread.
class PieceReader {
 public:
  /// Reads until a head is complete (kDone). kClosed: errno says why, 0 for an orderly end.
  IoResult read_head(int socket, PieceHead& head);
  /// Reads the piece's bytes to `target`, or nowhere. kDone: all of them.
  IoResult read_piece(int socket, std::byte* target, size_t length);
  /// Whether it is between two pieces, so that an end of the stream here loses nothing.
  bool idle() const { return have_ == used_ && done_ == 0; }

 private:
  // Heads and small messages are read into this, many with one call. It is small because the bytes
  // of large pieces go around it.
  static constexpr size_t kStaging = 4096;
  IoResult fill(int socket);
  std::array<std::byte, kStaging> staging_;
  size_t used_ = 0, have_ = 0;  // [used_, have_) of staging_ is unread
  size_t done_ = 0;             // bytes read of the current piece
};

}  // namespace tutti
