// The worker's side of the rendezvous of processes: it hands in its card and reads the deck, card
// by card.
#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>

#include "base/error.h"
#include "net/rendezvous/frames.h"
#include "net/rendezvous/rendezvous.h"
#include "net/rendezvous/rendezvous_frames.h"

namespace tutti {

namespace {

/// A worker's connection with the launcher, which all its groups use in turn.
class Link {
 public:
  Link(int worker, Fd socket, Clock& clock, const Cancel* cancel)
      : worker_(worker),
        socket_(std::move(socket)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        clock_(clock),
        cancel_(cancel) {
    if (!epoll_) throw_errno("epoll_create", "rendezvous");
    watch(EPOLL_CTL_ADD, EPOLLIN);
  }
  Clock& clock() { return clock_; }

  /// What an exchange that fails tells of itself.
  struct Failing {
    int rank;
    uint64_t number;
    Time start;
    [[noreturn]] void fail(Clock& clock, std::string reason, int peer = -1) const {
      throw CommError({.rank = rank,
                       .operation = "rendezvous",
                       .peer = peer,
                       .sequence = number,
                       .waited = clock.now() - start,
                       .reason = std::move(reason)});
    }
  };

  void hand_in(const std::string& group, const Card& mine, Patience& patience,
               const Failing& failing) {
    auto frame = std::make_shared<Frame>();
    frame->kind = kCard;
    frame->rank = worker_;
    frame->group = group;
    frame->bytes = mine.bytes;
    for (int fd : mine.fds) {
      frame->fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
      if (!frame->fds.back()) throw_errno("duplicate", "a descriptor of the rendezvous");
    }
    writer_.push(std::move(frame));
    for (bool waited = false;; waited = true) {
      const FrameProgress progress = writer_.write(socket_.get());
      if (progress == FrameProgress::kClosed) failing.fail(clock_, "the launcher is gone");
      if (progress == FrameProgress::kMore) {
        if (waited) watch(EPOLL_CTL_MOD, EPOLLIN);
        return;
      }
      if (!waited) watch(EPOLL_CTL_MOD, EPOLLOUT);
      wait_ready(patience, failing);
    }
  }

  /// The next frame of the group. What is left of exchanges of earlier groups, which failed here
  /// and were completed elsewhere, is dropped.
  Frame next_frame(const std::string& group, Patience& patience, const Failing& failing) {
    Frame frame;
    while (true) {
      const FrameProgress progress = reader_.read(socket_.get(), frame);
      if (progress == FrameProgress::kMore && frame.group == group) return frame;
      if (progress == FrameProgress::kMore) continue;
      if (progress == FrameProgress::kClosed) failing.fail(clock_, "the launcher is gone");
      wait_ready(patience, failing);
    }
  }

 private:
  void watch(int operation, uint32_t events) {
    epoll_event event{};
    event.events = events;
    if (::epoll_ctl(epoll_.get(), operation, socket_.get(), &event) != 0)
      throw_errno("watch", "rendezvous socket");
  }

  void wait_ready(Patience& patience, const Failing& failing) {
    while (true) {
      const Time now = clock_.awake();
      const bool cancelled = cancel_ != nullptr && cancel_->cancelled();
      const Deadline deadline = patience.deadline();
      if (clock_.wait_fd(epoll_.get(), {std::min(deadline.at, now + Clock::kSlice)}) ==
          WaitResult::kReady)
        return;
      if (cancelled) failing.fail(clock_, cancel_->reason());
      if (now >= deadline.at && !patience.extend()) failing.fail(clock_, "timed out");
    }
  }

  const int worker_;
  Fd socket_, epoll_;
  Clock& clock_;
  const Cancel* const cancel_;
  FrameReader reader_;
  FrameWriter writer_;
};

class ProcessRendezvous final : public Rendezvous {
 public:
  ProcessRendezvous(std::shared_ptr<Link> link, const Group& group, int rank)
      : link_(std::move(link)), members_(group.members), group_(to_bytes(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  std::vector<Card> exchange(const Card& mine, Patience patience) override {
    TUTTI_CHECK(mine.object == nullptr, "objects cannot be handed to other processes");
    const Link::Failing failing{rank_, number_, link_->clock().now()};
    link_->hand_in(group_, mine, patience, failing);
    std::vector<Card> deck(members_.size());
    try {
      for (size_t r = 0; r < deck.size(); ++r) {
        Frame frame = link_->next_frame(group_, patience, failing);
        if (frame.kind == kRankLeft)
          failing.fail(link_->clock(), fmt::format("rank {} left", frame.rank), frame.rank);
        TUTTI_CHECK(frame.kind == kCard && frame.rank == members_[r],
                    "card {} of the deck is of worker {}", r, frame.rank);
        deck[r].bytes = std::move(frame.bytes);
        for (Fd& fd : frame.fds) deck[r].fds.push_back(fd.release());
      }
    } catch (...) {
      // The descriptors that have arrived belong to nobody yet.
      for (Card& card : deck) {
        for (int fd : card.fds) Fd{fd}.reset();
      }
      throw;
    }
    ++number_;
    return deck;
  }

  std::unique_ptr<Rendezvous> among(const Membership& membership) override {
    return std::make_unique<ProcessRendezvous>(link_, Group{membership.epoch, membership.members},
                                               membership.rank);
  }

 private:
  const std::shared_ptr<Link> link_;
  const std::vector<int> members_;
  const std::string group_;  // as frames carry it
  const int rank_;
  uint64_t number_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_process_rendezvous(int rank, int size, Fd socket, Clock& clock,
                                                    const Cancel* cancel) {
  return std::make_unique<ProcessRendezvous>(
      std::make_shared<Link>(rank, std::move(socket), clock, cancel), all_of(size), rank);
}

}  // namespace tutti
