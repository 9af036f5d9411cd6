// Every call moves as much as the socket takes or gives and remembers how far it came; the caller
// comes back when epoll says that the socket is ready.
#include "net/tcp/tcp_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tutti {

namespace {

IoResult failure() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? IoResult::kBlocked
                                                                   : IoResult::kClosed;
}

}  // namespace

void PieceWriter::begin(PostedOp& op, const PieceHead& head) {
  op_ = &op;
  head_ = head;
  done_ = 0;
}

IoResult PieceWriter::write(int socket) {
  const size_t all = sizeof(head_) + head_.length;
  while (done_ < all) {
    // What is left of the head and of the piece leaves in one call, straight from the span of the
    // send.
    iovec parts[2];
    size_t count = 0;
    if (done_ < sizeof(head_))
      parts[count++] = {reinterpret_cast<char*>(&head_) + done_, sizeof(head_) - done_};
    const size_t sent = done_ < sizeof(head_) ? 0 : done_ - sizeof(head_);
    if (head_.length > 0) parts[count++] = {op_->data + head_.offset + sent, head_.length - sent};

    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return failure();
    done_ += static_cast<size_t>(n);
  }
  return IoResult::kDone;
}

bool PieceWriter::end() {
  PostedOp& op = *op_;
  op_ = nullptr;

  // Pieces of a message leave on several connections in any order: it has ended when all its bytes
  // have.
  op.settled += head_.length;
  if (op.settled < op.size) return false;
  op.finish();
  return op.awaited;
}

IoResult PieceReader::fill(int socket) {
  std::memmove(staging_.data(), staging_.data() + used_, have_ - used_);
  have_ -= used_;
  used_ = 0;

  // The unread bytes are at the front, and the rest of the staging memory takes what the socket
  // has. An orderly end of the stream is a close without an error number.
  const ssize_t n = ::recv(socket, staging_.data() + have_, kStaging - have_, MSG_DONTWAIT);
  if (n < 0) return failure();
  if (n == 0) {
    errno = 0;
    return IoResult::kClosed;
  }
  have_ += static_cast<size_t>(n);
  return IoResult::kDone;
}

IoResult PieceReader::read_head(int socket, PieceHead& head) {
  while (have_ - used_ < sizeof(head)) {
    const IoResult result = fill(socket);
    if (result != IoResult::kDone) return result;
  }
  std::memcpy(&head, staging_.data() + used_, sizeof(head));
  used_ += sizeof(head);
  return IoResult::kDone;
}

IoResult PieceReader::read_piece(int socket, std::byte* target, size_t length) {
  while (done_ < length) {
    const size_t left = length - done_;

    // First what was read ahead together with the head.
    if (used_ < have_) {
      const size_t n = std::min(left, have_ - used_);
      if (target != nullptr) std::memcpy(target + done_, staging_.data() + used_, n);
      used_ += n;
      done_ += n;
      continue;
    }

    // A short rest is read through the staging memory, since the next heads come with it in the
    // same call. What goes nowhere never has a target.
    if (target == nullptr || left < kStaging / 2) {
      const IoResult result = fill(socket);
      if (result != IoResult::kDone) return result;
      continue;
    }

    // A long rest goes straight to the span of the receive.
    const ssize_t n = ::recv(socket, target + done_, left, MSG_DONTWAIT);
    if (n < 0) return failure();
    if (n == 0) {
      errno = 0;
      return IoResult::kClosed;
    }
    done_ += static_cast<size_t>(n);
  }

  done_ = 0;
  return IoResult::kDone;
}

}  // namespace tutti
