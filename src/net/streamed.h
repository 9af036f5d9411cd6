// What shm and tcp have in common: posted operations, matching, waiting, and failing as a
// whole. A derived class moves the bytes: shm on the threads that wait (work() and
// progress()), tcp on a thread of its own.
#pragma once

#include <mutex>
#include <vector>

#include "net/inbox.h"
#include "net/transport.h"

namespace tutti {

class Streamed : public Transport {
 public:
  Streamed(int rank, int size, const Epoch& epoch, Clock& clock, const Cancel* cancel);
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(inboxes_.size()); }
  Ticket post_send(int peer, Tag tag, std::span<const std::byte> bytes) override;
  Ticket post_recv(int peer, Tag tag, std::span<std::byte> bytes) override;
  void wait(Ticket ticket, Patience patience) override;
  uint64_t sent_bytes(int peer) const override {
    return sent_[peer].load(std::memory_order_relaxed);
  }
  uint64_t dropped() const override { return dropped_.load(std::memory_order_relaxed); }

  /// Gives back every span: after this nobody touches one, and every wait throws.
  void release_spans(const std::string& reason);

 protected:
  /// Begins to send. Called under the lock.
  virtual void begin_send(PostedOp& op) = 0;
  /// What waiting threads sleep on. It is notified when an operation ends and when there may be
  /// work().
  virtual Signal& signal() = 0;
  /// Whether progress() may achieve something, for transports that are moved on by the threads that
  /// wait.
  virtual bool work() const { return false; }
  virtual void progress() {}
  /// No byte moves after this returns. Called once, without the lock.
  virtual void stop_moving() {}

  /// Fails all that is posted with this peer or will be. Called under the lock.
  void lose_peer(int peer, const std::string& reason);
  bool lost(int peer) const { return !losses_[peer].empty(); }
  bool belongs(const Epoch& epoch) const;
  void count_dropped() { dropped_.fetch_add(1, std::memory_order_relaxed); }

  const int rank_;
  const Epoch epoch_;
  Clock& clock_;
  const Cancel* const cancel_;
  std::mutex mutex_;
  std::vector<Inbox> inboxes_;
  std::atomic<int> outstanding_{0};  ///< operations posted and not yet waited for
  std::atomic<bool> broken_{false};
  /// Why the transport is broken, once it is.
  std::string failed_before();

 private:
  PostedOp& add(bool send, int peer, Tag tag, std::byte* data, size_t size);
  std::mutex release_mutex_;  // taken before mutex_
  PostedOps ops_;
  std::string broken_reason_;
  std::vector<std::string> losses_;
  std::vector<std::atomic<uint64_t>> sent_;
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace tutti
