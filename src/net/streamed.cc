// Operations are added, matched and failed under one lock; only their state is read without it, by
// the thread that sleeps until it changes.
// There are two ways to fail. A lost peer fails what is posted with that peer, and what arrived
// from it before is still delivered. A wait that throws breaks the whole transport: all spans are
// given back, since the caller unwinds and frees them.
#include "net/streamed.h"

#include "net/failure.h"

namespace tutti {

Streamed::Streamed(int rank, int size, const Epoch& epoch, Clock& clock, const Cancel* cancel)
    : rank_(rank),
      epoch_(epoch),
      clock_(clock),
      cancel_(cancel),
      inboxes_(size),
      losses_(size),
      sent_(static_cast<size_t>(size)) {}

PostedOp& Streamed::add(bool send, int peer, Tag tag, std::byte* data, size_t size) {
  TUTTI_CHECK(peer >= 0 && peer < this->size() && peer != rank_, "rank {} cannot message rank {}",
              rank_, peer);

  // An operation on a broken transport gets a ticket like any other: it is its wait that throws.
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  PostedOp& op = ops_.add(send, peer, tag, data, size);
  if (broken_) op.fail(broken_reason_);
  return op;
}

Ticket Streamed::post_send(int peer, Tag tag, std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  PostedOp& op = add(true, peer, tag, const_cast<std::byte*>(bytes.data()), bytes.size());
  if (lost(peer)) op.fail(losses_[peer]);
  if (op.pending()) {
    sent_[peer].fetch_add(bytes.size(), std::memory_order_relaxed);
    begin_send(op);
  }
  return {op.id};
}

Ticket Streamed::post_recv(int peer, Tag tag, std::span<std::byte> bytes) {
  std::lock_guard lock(mutex_);
  PostedOp& op = add(false, peer, tag, bytes.data(), bytes.size());

  // Matching comes before the look at the peer: a message that arrived whole is delivered even if
  // its sender has been lost since.
  if (op.pending()) inboxes_[peer].post(op);
  if (op.pending() && lost(peer)) inboxes_[peer].fail(losses_[peer]);
  return {op.id};
}

void Streamed::wait(Ticket ticket, Patience patience) {
  // A wait that comes after the end of its operation takes the lock once. `awaited` is set under
  // the same lock, so whoever ends the operation later cannot miss it.
  PostedOp* op = nullptr;
  {
    std::lock_guard lock(mutex_);
    op = ops_.find(ticket);
    TUTTI_CHECK(op != nullptr, "rank {} waits for a ticket that it does not hold", rank_);
    if (op->state == OpState::kDone) {
      ops_.remove(*op);
      outstanding_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
    op->awaited = true;
  }

  // Sleep until the operation has ended, and move bytes whenever there is work: with shm nobody
  // else does.
  const Time start = clock_.now();
  WaitResult result = WaitResult::kReady;
  while (op->pending()) {
    result = clock_.wait(
        signal(), [&] { return !op->pending() || work(); }, patience.deadline(), cancel_);
    if (result == WaitResult::kTimedOut && patience.extend()) continue;
    if (result != WaitResult::kReady || !op->pending()) break;
    progress();
    // A stream of work for others must not keep this wait from its end.
    if (op->pending() && cancel_ != nullptr && cancel_->cancelled())
      result = WaitResult::kCancelled;
    if (op->pending() && clock_.passed(patience.deadline()) && !patience.extend())
      result = WaitResult::kTimedOut;
    if (result != WaitResult::kReady) break;
  }

  // The operation may have ended while the wait gave up: its own state decides, whatever the clock
  // said.
  CommFailure failure;
  {
    std::lock_guard lock(mutex_);
    const OpState state = op->state;
    if (state != OpState::kDone) {
      failure = {.rank = rank_,
                 .operation = describe_message(op->send, op->tag),
                 .peer = op->peer,
                 .sequence = op->tag.sequence,
                 .waited = clock_.now() - start,
                 .reason = state == OpState::kFailed ? op->reason : describe_end(result, cancel_)};
    }
    // When the run was cancelled, the transport breaks as a consequence: the error gives the cause
    // and not its echo.
    if (state == OpState::kFailed && cancel_ != nullptr && cancel_->cancelled())
      failure.reason = cancel_->reason();
    if (state == OpState::kDone) {
      ops_.remove(*op);
      outstanding_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
  }

  // The lock is free again: giving back the spans may have to join a thread that wants it.
  release_spans(failure.reason);
  throw CommError(std::move(failure));
}

void Streamed::release_spans(const std::string& reason) {
  // A second thread that fails meanwhile waits here, so that it, too, returns only once the spans
  // are free.
  std::lock_guard releasing(release_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_reason_ = reason;
    broken_ = true;
  }

  // First nothing new begins, then no byte moves any more, and only then operations end: a receive
  // that has failed must not be written to.
  stop_moving();
  {
    std::lock_guard lock(mutex_);
    ops_.for_each([&](PostedOp& op) {
      if (op.pending()) op.fail(reason);
    });
  }
  clock_.notify(signal());
}

std::string Streamed::failed_before() {
  std::lock_guard lock(mutex_);
  return broken_reason_;
}

void Streamed::lose_peer(int peer, const std::string& reason) {
  // The first reason is kept: later ones follow from it.
  if (lost(peer)) return;
  losses_[peer] = reason;
  inboxes_[peer].fail(reason);
  ops_.for_each([&](PostedOp& op) {
    if (op.send && op.peer == peer && op.pending()) op.fail(reason);
  });
}

bool Streamed::belongs(const Epoch& epoch) const {
  return epoch.run == epoch_.run && epoch.epoch == epoch_.epoch && epoch.plan == epoch_.plan;
}

}  // namespace tutti
