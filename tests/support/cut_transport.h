// A transport that is cut in the middle of a step, before or after the vote of that step can be
// seen by others, or between steps: what a failing network does to ranks that live.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "net/transport.h"
#include "plan/ir/tags.h"

namespace tutti::testing_support {

/// Where the connections of one rank break. Shared by all ranks, also by forked ones.
struct Cut {
  int rank = 1;
  Operations channel = kDataChannel;  ///< whose calls the votes are
  uint64_t vote = 0;                  ///< counted from 0
  /// The vote is sent and everybody else has seen all votes; else the cut comes before it is sent.
  bool after = false;
  /// The others are told by the connection. Else only the rank that it happens to knows of it.
  bool told = true;
  std::atomic<int> seen{0};  ///< ranks that have seen all votes
  std::atomic<int> cuts{0};
};
inline Cut* shared_cut() {
  void* page =
      ::mmap(nullptr, sizeof(Cut), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (page) Cut;
}

class CutTransport final : public Transport {
 public:
  CutTransport(std::unique_ptr<Transport> inner, Cut& cut) : inner_(std::move(inner)), cut_(cut) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }

  Ticket post_send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    if (is_vote(tag) && mine() && !cut_.after) break_off("before its vote");
    return inner_->post_send(peer, tag, bytes);
  }
  Ticket post_recv(int peer, Tag tag, std::span<std::byte> bytes) override {
    const Ticket ticket = inner_->post_recv(peer, tag, bytes);
    if (is_vote(tag)) votes_[ticket.id] = 1;
    return ticket;
  }
  void wait(Ticket ticket, Patience patience) override {
    const bool vote = votes_.contains(ticket.id);
    if (vote && mine() && cut_.after) {
      // The others have seen this rank's vote, which has left by itself.
      SystemClock clock;
      while (cut_.seen.load() < size() - 1 &&
             (!clock.passed(patience.deadline()) || patience.extend()))
        clock.sleep(std::chrono::milliseconds(1), nullptr);
      break_off("after its vote");
    }
    inner_->wait(ticket, std::move(patience));
    if (vote && votes_.erase(ticket.id) == 1 && votes_.empty()) cut_.seen.fetch_add(1);
  }
  std::span<std::byte> window() override { return inner_->window(); }
  std::shared_ptr<Window> held_window() override { return inner_->held_window(); }
  std::span<const std::byte> window_of(int peer) const override { return inner_->window_of(peer); }
  void raise(int index, uint64_t value) override { inner_->raise(index, value); }
  void await(int peer, int index, uint64_t value, Patience patience,
             std::string_view what) override {
    inner_->await(peer, index, value, std::move(patience), what);
  }
  void leave() override { inner_->leave(); }
  uint64_t sent_bytes(int peer) const override { return inner_->sent_bytes(peer); }
  uint64_t dropped() const override { return inner_->dropped(); }

 private:
  bool mine() const { return rank() == cut_.rank && cut_.cuts.load() == 0; }
  bool is_vote(Tag tag) const {
    return cut_.channel.has(tag.operation) && tag.sequence == cut_.vote;
  }
  [[noreturn]] void break_off(const char* when) {
    cut_.cuts.fetch_add(1);
    if (cut_.told) inner_->leave();
    throw CommError({.rank = rank(), .operation = "vote", .reason = std::string("cut ") + when});
  }

  std::unique_ptr<Transport> inner_;
  Cut& cut_;
  std::map<uint64_t, int> votes_;  // posted and not yet seen
};

}  // namespace tutti::testing_support
