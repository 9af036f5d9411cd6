// Matches what arrives from one peer with the receives that were posted for it, for transports
// whose messages come as streams of pieces (shm and tcp).
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "net/transport.h"

namespace tutti {

enum class OpState : int { kPending, kDone, kFailed };

/// A posted send or receive. All but `state` may be touched only under the transport's lock.
struct PostedOp {
  uint64_t id = 0;  ///< of its ticket; 0: free
  bool send = false;
  int peer = -1;
  Tag tag;
  std::byte* data = nullptr;  ///< of a send: only read
  size_t size = 0;
  /// of a send: bytes that have left, or that a connection has taken over
  size_t moved = 0;
  size_t settled = 0;   ///< tcp: bytes that have left for good
  uint64_t number = 0;  ///< tcp: of the message among those to its peer
  bool begun = false;   ///< its head has been written, or handed to a connection
  /// tcp: a thread sleeps until it ends. The end of an operation that nobody awaits need not wake
  /// anybody
  bool awaited = false;
  std::string reason;  ///< why it failed; written before the state
  std::atomic<OpState> state{OpState::kPending};

  bool pending() const { return state.load(std::memory_order_acquire) == OpState::kPending; }
  void finish() { state.store(OpState::kDone, std::memory_order_release); }
  void fail(std::string why) {
    reason = std::move(why);
    state.store(OpState::kFailed, std::memory_order_release);
  }
};

/// The operations of a transport, at stable addresses. A ticket's id is never used twice.
class PostedOps {
 public:
  PostedOp& add(bool send, int peer, Tag tag, std::byte* data, size_t size);
  /// Null where there is no such ticket.
  PostedOp* find(Ticket ticket);
  void remove(PostedOp& op);
  template <typename F>
  void for_each(F&& visit) {
    for (PostedOp& op : ops_) {
      if (op.id != 0) visit(op);
    }
  }

 private:
  static constexpr uint64_t kIndexBits = 24;
  std::deque<PostedOp> ops_;
  std::vector<uint64_t> free_;
  uint64_t next_ = 1;
};

/// A message that has begun to arrive.
struct Incoming {
  uint64_t number = 0;  ///< tcp: tells the pieces of messages apart
  Tag tag;
  size_t size = 0;
  size_t received = 0;
  /// it belongs to another epoch, or its receive refused it: its bytes are read and thrown away
  bool dropped = false;
  PostedOp* op = nullptr;             ///< the receive it was matched with
  std::unique_ptr<std::byte[]> heap;  ///< holds its bytes if no receive was posted in time

  /// Where byte `offset` is stored; null: it is thrown away.
  std::byte* target(size_t offset) const;
  bool complete() const { return received == size; }
};

/// The receiving side of one peer. Not thread-safe.
class Inbox {
 public:
  /// Matches a receive with the first message of its tag, or keeps it until that begins to arrive.
  void post(PostedOp& op);
  /// A message begins to arrive. Messages must begin in the order in which they were sent, since
  /// that is the order in which equal tags match. The reference is valid until settle(). Throws
  /// Error when there is no memory for the message.
  Incoming& begin(uint64_t number, Tag tag, size_t size, bool drop);
  Incoming* find(uint64_t number);
  /// To be called when all of a message has been received: completes its receive if one was posted,
  /// and returns whether one was.
  bool settle(Incoming& message);
  /// Fails every posted receive.
  void fail(const std::string& reason);

 private:
  void match(Incoming& message, PostedOp& op);
  std::deque<PostedOp*> posted_;  // receives without a message
  std::list<Incoming> messages_;  // begun, and not yet both complete and handed over
};

}  // namespace tutti
