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

Op& Streamed::add(bool send, int peer, Tag tag, std::byte* data, size_t size) {
  TUTTI_CHECK(peer >= 0 && peer < this->size() && peer != rank_, "rank {} cannot message rank {}",
              rank_, peer);
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  Op& op = ops_.add(send, peer, tag, data, size);
  if (broken_) op.fail(broken_reason_);
  return op;
}

Ticket Streamed::post_send(int peer, Tag tag, std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  Op& op = add(true, peer, tag, const_cast<std::byte*>(bytes.data()), bytes.size());
  if (lost(peer)) op.fail(losses_[peer]);
  if (op.pending()) {
    sent_[peer].fetch_add(bytes.size(), std::memory_order_relaxed);
    begin_send(op);
  }
  return {op.id};
}

Ticket Streamed::post_recv(int peer, Tag tag, std::span<std::byte> bytes) {
  std::lock_guard lock(mutex_);
  Op& op = add(false, peer, tag, bytes.data(), bytes.size());
  if (op.pending()) inboxes_[peer].post(op);
  if (op.pending() && lost(peer)) inboxes_[peer].fail(losses_[peer]);
  return {op.id};
}

void Streamed::wait(Ticket ticket, Deadline deadline) {
  Op* op = nullptr;
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
  const Time start = clock_.now();
  WaitResult result = WaitResult::kReady;
  while (op->pending()) {
    result = clock_.wait(
        signal(), [&] { return !op->pending() || work(); }, deadline, cancel_);
    if (result != WaitResult::kReady || !op->pending()) break;
    progress();
    // A stream of work for others must not keep this wait from its end.
    if (op->pending() && cancel_ != nullptr && cancel_->cancelled())
      result = WaitResult::kCancelled;
    if (op->pending() && clock_.passed(deadline)) result = WaitResult::kTimedOut;
    if (result != WaitResult::kReady) break;
  }
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
    // The error of a broken transport is that of the run when it was cancelled: the cause, not its
    // echo.
    if (state == OpState::kFailed && cancel_ != nullptr && cancel_->cancelled())
      failure.reason = cancel_->reason();
    if (state == OpState::kDone) {
      ops_.remove(*op);
      outstanding_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
  }
  release_spans(failure.reason);
  throw CommError(std::move(failure));
}

void Streamed::release_spans(const std::string& reason) {
  // a second thread that fails leaves only after the spans are free
  std::lock_guard releasing(release_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_reason_ = reason;
    broken_ = true;
  }
  stop_moving();
  {
    std::lock_guard lock(mutex_);
    ops_.for_each([&](Op& op) {
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
  if (lost(peer)) return;
  losses_[peer] = reason;
  inboxes_[peer].fail(reason);
  ops_.for_each([&](Op& op) {
    if (op.send && op.peer == peer && op.pending()) op.fail(reason);
  });
}

bool Streamed::belongs(const Epoch& epoch) const {
  return epoch.run == epoch_.run && epoch.epoch == epoch_.epoch && epoch.plan == epoch_.plan;
}

}  // namespace tutti
