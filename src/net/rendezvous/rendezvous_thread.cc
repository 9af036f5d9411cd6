// The rendezvous of thread ranks: all cards are kept in one object, by round. A round is kept until
// the last rank has taken its deck, since a fast rank may be in the next round already.
#include <fcntl.h>

#include <map>
#include <mutex>

#include "base/error.h"
#include "net/rendezvous/rendezvous.h"

namespace tutti {

namespace {

struct Round {
  std::vector<Card> cards;
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
  Impl(int n, Clock& c, const Cancel* x) : size(n), clock(c), cancel(x), left(n, false) {}
  const int size;
  Clock& clock;
  const Cancel* const cancel;
  Signal signal;
  std::mutex mutex;
  std::map<uint64_t, Round> rounds;
  std::vector<bool> left;  // by rank: its view is gone

  void hand_in(uint64_t number, int rank, const Card& mine) {
    // The duplicates are made before the lock is taken, and are freed by `owned` if one fails.
    std::vector<Fd> owned;
    Card card = mine;
    for (int& fd : card.fds) {
      fd = duplicate(fd);
      owned.emplace_back(fd);
    }
    {
      std::lock_guard lock(mutex);
      Round& round = rounds[number];
      round.cards.resize(size);
      round.present.resize(size, false);
      round.cards[rank] = std::move(card);
      round.present[rank] = true;
      for (Fd& fd : owned) round.owned.push_back(std::move(fd));
      ++round.arrived;
    }
    clock.notify(signal);
  }

  /// A rank that is missing in the round and will never come, or -1.
  int deserter(const Round& round) const {
    for (int r = 0; r < size; ++r) {
      if (left[r] && !round.present[r]) return r;
    }
    return -1;
  }

  std::vector<Card> take(uint64_t number) {
    // Every receiver owns its descriptors, so each deck has duplicates of its own.
    std::lock_guard lock(mutex);
    Round& round = rounds[number];
    std::vector<Card> deck = round.cards;
    for (Card& card : deck) {
      for (int& fd : card.fds) fd = duplicate(fd);
    }
    if (++round.taken == size) rounds.erase(number);
    return deck;
  }
};

namespace {

// One rank's end of the rendezvous. Its destruction tells the others that no more cards will come.
class View final : public Rendezvous {
 public:
  View(std::shared_ptr<ThreadRendezvous::Impl> impl, int rank)
      : impl_(std::move(impl)), rank_(rank) {}
  ~View() override {
    {
      std::lock_guard lock(impl_->mutex);
      impl_->left[rank_] = true;
    }
    impl_->clock.notify(impl_->signal);
  }
  int rank() const override { return rank_; }
  int size() const override { return impl_->size; }

  std::vector<Card> exchange(const Card& mine, Deadline deadline) override {
    const Time start = impl_->clock.now();
    const uint64_t number = next_++;
    impl_->hand_in(number, rank_, mine);

    // Whoever left after handing in its card is no loss for this round. The lock is needed because
    // others hand in their cards meanwhile.
    int deserter = -1;
    auto ready = [&] {
      std::lock_guard lock(impl_->mutex);
      const Round& round = impl_->rounds[number];
      if (round.arrived == impl_->size) return true;
      deserter = impl_->deserter(round);
      return deserter >= 0;
    };
    WaitResult result = impl_->clock.wait(impl_->signal, ready, deadline, impl_->cancel);
    if (result == WaitResult::kReady && deserter < 0) return impl_->take(number);

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

 private:
  std::shared_ptr<ThreadRendezvous::Impl> impl_;
  const int rank_;
  uint64_t next_ = 0;
};

}  // namespace

ThreadRendezvous::ThreadRendezvous(int size, Clock& clock, const Cancel* cancel)
    : impl_(std::make_shared<Impl>(size, clock, cancel)) {}
ThreadRendezvous::~ThreadRendezvous() = default;
std::unique_ptr<Rendezvous> ThreadRendezvous::view(int rank) {
  return std::make_unique<View>(impl_, rank);
}

}  // namespace tutti
