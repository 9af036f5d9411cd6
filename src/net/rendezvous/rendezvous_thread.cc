// The rendezvous of threads: rounds of cards in one object. A round is kept until the last member
// has taken its deck.
#include <fcntl.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/error.h"
#include "net/rendezvous/rendezvous.h"
#include "net/rendezvous/rendezvous_frames.h"

namespace tutti {

namespace {

struct Round {
  std::vector<Card> cards;  // by rank of the group
  std::vector<bool> present;
  std::vector<Fd> owned;  // the descriptors in `cards`, duplicates of what was handed in
  int arrived = 0;
  int taken = 0;
};

int duplicate(int fd) {
  int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw_errno("duplicate", "a descriptor of the rendezvous");
  return copy;
}

}  // namespace

struct ThreadRendezvous::Impl {
  Impl(int n, Clock& c, const Cancel* x)
      : size(n), clock(c), cancel(x), left(n, false), latest(n, 0) {}
  const int size;
  Clock& clock;
  const Cancel* const cancel;
  Signal signal;
  std::mutex mutex;
  struct Rounds {
    std::map<uint64_t, Round> open;
    std::vector<uint64_t> next;  // by rank: the number of its next round
  };
  std::map<Group, Rounds> groups;
  std::vector<bool> left;        // by worker
  std::vector<uint32_t> latest;  // by worker: the epoch of the last card it handed in

  /// Returns the number of the round.
  uint64_t hand_in(const Group& group, int rank, const Card& mine) {
    // Every rank closes its own descriptors, so what is handed in are duplicates.
    std::vector<Fd> owned;
    Card card = mine;
    for (int& fd : card.fds) {
      fd = duplicate(fd);
      owned.emplace_back(fd);
    }

    // Ranks call equally often, so a rank's n-th card belongs to the n-th round.
    uint64_t number = 0;
    {
      std::lock_guard lock(mutex);
      uint32_t& epoch = latest[group.members[rank]];
      if (group.epoch != Group::kNoEpoch) epoch = std::max(epoch, group.epoch);
      Rounds& rounds = groups[group];
      rounds.next.resize(group.members.size(), 0);
      number = rounds.next[rank]++;
      Round& round = rounds.open[number];
      round.cards.resize(group.members.size());
      round.present.resize(group.members.size(), false);
      round.cards[rank] = std::move(card);
      round.present[rank] = true;
      for (Fd& fd : owned) round.owned.push_back(std::move(fd));
      ++round.arrived;
    }
    clock.notify(signal);
    return number;
  }

  /// A rank that is missing in the round and will never come, or -1.
  int deserter(const Group& group, const Round& round) const {
    for (size_t r = 0; r < group.members.size(); ++r) {
      const int worker = group.members[r];
      if (!round.present[r] && (left[worker] || group.left_by(latest[worker])))
        return static_cast<int>(r);
    }
    return -1;
  }

  std::vector<Card> take(const Group& group, uint64_t number) {
    std::lock_guard lock(mutex);
    Rounds& rounds = groups[group];
    Round& round = rounds.open[number];
    std::vector<Card> deck = round.cards;
    for (Card& card : deck) {
      for (int& fd : card.fds) fd = duplicate(fd);
    }
    if (++round.taken == static_cast<int>(group.members.size())) rounds.open.erase(number);
    return deck;
  }
};

namespace {

class View : public Rendezvous {
 public:
  View(std::shared_ptr<ThreadRendezvous::Impl> impl, Group group, int rank)
      : impl_(std::move(impl)), group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.members.size()); }

  std::vector<Card> exchange(const Card& mine, Patience patience) override {
    const Time start = impl_->clock.now();
    const uint64_t number = impl_->hand_in(group_, rank_, mine);
    int deserter = -1;
    auto ready = [&] {
      std::lock_guard lock(impl_->mutex);
      const Round& round = impl_->groups[group_].open[number];
      if (round.arrived == size()) return true;
      deserter = impl_->deserter(group_, round);
      return deserter >= 0;
    };
    WaitResult result = WaitResult::kTimedOut;
    do {
      result = impl_->clock.wait(impl_->signal, ready, patience.deadline(), impl_->cancel);
    } while (result == WaitResult::kTimedOut && patience.extend());
    if (result == WaitResult::kReady && deserter < 0) return impl_->take(group_, number);

    // The cause is what ended the wait: the deadline, the cancel, or a rank that never comes.
    CommFailure failure{.rank = rank_,
                        .operation = "rendezvous",
                        .peer = deserter,
                        .sequence = number,
                        .waited = impl_->clock.now() - start,
                        .reason = "timed out"};
    if (result == WaitResult::kCancelled) failure.reason = impl_->cancel->reason();
    if (result == WaitResult::kReady) failure.reason = fmt::format("rank {} left", deserter);
    throw CommError(std::move(failure));
  }

  std::unique_ptr<Rendezvous> among(const Membership& membership) override {
    return std::make_unique<View>(impl_, Group{membership.epoch, membership.members},
                                  membership.rank);
  }

 protected:
  std::shared_ptr<ThreadRendezvous::Impl> impl_;

 private:
  const Group group_;
  const int rank_;
};

/// A worker's view of all; without it the worker is gone.
class WholeView final : public View {
 public:
  WholeView(const std::shared_ptr<ThreadRendezvous::Impl>& impl, int worker)
      : View(impl, all_of(impl->size), worker) {}
  ~WholeView() override {
    {
      std::lock_guard lock(impl_->mutex);
      impl_->left[rank()] = true;
    }
    impl_->clock.notify(impl_->signal);
  }
};

}  // namespace

ThreadRendezvous::ThreadRendezvous(int size, Clock& clock, const Cancel* cancel)
    : impl_(std::make_shared<Impl>(size, clock, cancel)) {}
ThreadRendezvous::~ThreadRendezvous() = default;
std::unique_ptr<Rendezvous> ThreadRendezvous::view(int rank) {
  return std::make_unique<WholeView>(impl_, rank);
}

}  // namespace tutti
