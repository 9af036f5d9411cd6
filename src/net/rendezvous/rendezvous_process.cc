// The worker's side of the rendezvous of processes: it hands in its card
// and reads the deck, card by card.
#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>

#include "base/error.h"
#include "net/rendezvous/frames.h"
#include "net/rendezvous/rendezvous.h"
#include "net/rendezvous/rendezvous_frames.h"

namespace tutti {

namespace {

class ProcessRendezvous final : public Rendezvous {
 public:
  ProcessRendezvous(int rank, int size, Fd socket, Clock& clock, const Cancel* cancel)
      : rank_(rank),
        size_(size),
        socket_(std::move(socket)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        clock_(clock),
        cancel_(cancel) {
    if (!epoll_) throw_errno("epoll_create", "rendezvous");
    watch(EPOLL_CTL_ADD, EPOLLIN);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<Card> exchange(const Card& mine, Deadline deadline) override {
    TUTTI_CHECK(mine.object == nullptr, "objects cannot be handed to other processes");
    start_ = clock_.now();
    hand_in(mine, deadline);

    // The deck comes in rank order. Instead of it there may be the news that a rank has left; that
    // comes only before a first card, since a deck is dealt when it is complete.
    std::vector<Card> deck(size_);
    try {
      for (int r = 0; r < size_; ++r) {
        Frame frame = next_frame(deadline);
        if (frame.kind == kRankLeft) fail(fmt::format("rank {} left", frame.rank), frame.rank);
        TUTTI_CHECK(frame.kind == kCard && frame.rank == r, "card {} of the deck is of rank {}", r,
                    frame.rank);
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

 private:
  void watch(int operation, uint32_t events) {
    epoll_event event{};
    event.events = events;
    if (::epoll_ctl(epoll_.get(), operation, socket_.get(), &event) != 0)
      throw_errno("watch", "rendezvous socket");
  }

  [[noreturn]] void fail(std::string reason, int peer = -1) {
    throw CommError({.rank = rank_,
                     .operation = "rendezvous",
                     .peer = peer,
                     .sequence = number_,
                     .waited = clock_.now() - start_,
                     .reason = std::move(reason)});
  }

  void wait_ready(Deadline deadline) {
    while (true) {
      // Cancel and deadline are looked at before the sleep and judged after it: a socket that is
      // ready wins over both. The sleep is sliced, because a cancel wakes nobody.
      const Time now = clock_.awake();
      const bool cancelled = cancel_ != nullptr && cancel_->cancelled();
      if (clock_.wait_fd(epoll_.get(), {std::min(deadline.at, now + Clock::kSlice)}) ==
          WaitResult::kReady)
        return;
      if (cancelled) fail(cancel_->reason());
      if (now >= deadline.at) fail("timed out");
    }
  }

  void hand_in(const Card& mine, Deadline deadline) {
    auto frame = std::make_shared<Frame>();
    frame->kind = kCard;
    frame->rank = rank_;
    frame->bytes = mine.bytes;

    // The frame owns its descriptors, and the card's are only borrowed: it gets duplicates.
    for (int fd : mine.fds) {
      frame->fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
      if (!frame->fds.back()) throw_errno("duplicate", "a descriptor of the rendezvous");
    }

    // The socket is watched for room only while it is full: it nearly always has room, and would be
    // reported at every look.
    writer_.push(std::move(frame));
    for (bool waited = false;; waited = true) {
      const FrameProgress progress = writer_.write(socket_.get());
      if (progress == FrameProgress::kClosed) fail("the launcher is gone");
      if (progress == FrameProgress::kMore) {
        if (waited) watch(EPOLL_CTL_MOD, EPOLLIN);
        return;
      }
      if (!waited) watch(EPOLL_CTL_MOD, EPOLLOUT);
      wait_ready(deadline);
    }
  }

  Frame next_frame(Deadline deadline) {
    Frame frame;
    while (true) {
      const FrameProgress progress = reader_.read(socket_.get(), frame);
      if (progress == FrameProgress::kMore) return frame;
      if (progress == FrameProgress::kClosed) fail("the launcher is gone");
      wait_ready(deadline);
    }
  }

  // The descriptor that a sleep waits for is the epoll instance: Clock waits for nothing else.
  const int rank_, size_;
  Fd socket_, epoll_;
  Clock& clock_;
  const Cancel* const cancel_;
  FrameReader reader_;
  FrameWriter writer_;
  uint64_t number_ = 0;  // of the exchange, for messages
  Time start_;           // of the exchange
};

}  // namespace

std::unique_ptr<Rendezvous> make_process_rendezvous(int rank, int size, Fd socket, Clock& clock,
                                                    const Cancel* cancel) {
  return std::make_unique<ProcessRendezvous>(rank, size, std::move(socket), clock, cancel);
}

}  // namespace tutti
