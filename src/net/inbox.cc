// Two lists per peer, receives without a message and messages without a receive (or still
// arriving), searched from the front: tags that are equal match in order. Both stay short, since
// most receives are posted before their messages come.
#include "net/inbox.h"

#include <algorithm>
#include <new>

#include "base/error.h"
#include "net/failure.h"

namespace tutti {

PostedOp& PostedOps::add(bool send, int peer, Tag tag, std::byte* data, size_t size) {
  uint64_t index = ops_.size();

  // A free place is used again, so that the table is as large as the most operations that were ever
  // posted at once. A deque does not move its elements when it grows.
  if (free_.empty()) {
    TUTTI_CHECK(index < (uint64_t{1} << kIndexBits), "too many messages are posted at once");
    ops_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  PostedOp& op = ops_[index];

  // The id is a count and the place: a ticket of an earlier operation at this place is recognised
  // as stale.
  op.id = next_++ << kIndexBits | index;
  op.send = send;
  op.peer = peer;
  op.tag = tag;
  op.data = data;
  op.size = size;
  op.moved = op.settled = 0;
  op.begun = op.awaited = false;
  op.state.store(OpState::kPending, std::memory_order_relaxed);

  return op;
}

PostedOp* PostedOps::find(Ticket ticket) {
  const uint64_t index = ticket.id & ((uint64_t{1} << kIndexBits) - 1);
  return ticket.id != 0 && index < ops_.size() && ops_[index].id == ticket.id ? &ops_[index]
                                                                              : nullptr;
}

void PostedOps::remove(PostedOp& op) {
  free_.push_back(op.id & ((uint64_t{1} << kIndexBits) - 1));
  op.id = 0;
}

std::byte* Incoming::target(size_t offset) const {
  if (heap != nullptr) return heap.get() + offset;
  return op != nullptr && !dropped ? op->data + offset : nullptr;
}

void Inbox::match(Incoming& message, PostedOp& op) {
  message.op = &op;
  if (message.size == op.size) return;

  // A receive of another size is refused as a whole, and the bytes that still come go nowhere.
  op.fail(describe_size_mismatch(message.size, op.size));
  message.dropped = true;  // its heap stays: a thread may be writing into it
}

void Inbox::post(PostedOp& op) {
  // The first message of this tag that no receive has taken yet.
  auto found = std::find_if(messages_.begin(), messages_.end(), [&](const Incoming& m) {
    return m.op == nullptr && !m.dropped && m.tag == op.tag;
  });
  if (found == messages_.end()) {
    posted_.push_back(&op);
    return;
  }

  // The message came first: if all of it has arrived, the receive is done at once; else its rest
  // arrives in the heap and is copied at the end.
  match(*found, op);
  if (found->complete()) settle(*found);
}

Incoming& Inbox::begin(uint64_t number, Tag tag, size_t size, bool drop) {
  Incoming& message = messages_.emplace_back();
  message.number = number;
  message.tag = tag;
  message.size = size;
  message.dropped = drop;

  // Nobody matches a dropped message: it is kept only until its bytes have gone by.
  if (drop) return message;

  // With a receive posted the bytes go straight to its span; without one they need memory of their
  // own. No memory is an error of this connection, not the end of the process.
  auto found = std::find_if(posted_.begin(), posted_.end(),
                            [&](const PostedOp* op) { return op->tag == tag; });
  if (found != posted_.end()) {
    PostedOp& op = **found;
    posted_.erase(found);
    match(message, op);
  } else {
    message.heap.reset(new (std::nothrow) std::byte[size]);
    if (message.heap == nullptr)
      throw Error(fmt::format("no memory for a message of {} bytes", size));
  }

  return message;
}

Incoming* Inbox::find(uint64_t number) {
  for (Incoming& message : messages_) {
    if (message.number == number && !message.complete()) return &message;
  }
  return nullptr;
}

bool Inbox::settle(Incoming& message) {
  const bool received = message.op != nullptr && !message.dropped;
  if (received) {
    if (message.heap != nullptr && message.size > 0)
      std::memcpy(message.op->data, message.heap.get(), message.size);
    message.op->finish();
  }

  // A whole message that nobody has asked for yet stays, until post() finds it.
  if (received || message.dropped) {
    messages_.remove_if([&](const Incoming& m) { return &m == &message; });
  }

  return received;
}

void Inbox::fail(const std::string& reason) {
  for (PostedOp* op : posted_) op->fail(reason);
  posted_.clear();

  // A message that is complete and waits for its receive is left alone: it can still be delivered.
  // One that was cut off in the middle of its receive will never end.
  for (Incoming& message : messages_) {
    if (message.op == nullptr || message.dropped) continue;
    message.op->fail(reason);
    message.dropped = true;
  }
}

}  // namespace tutti
