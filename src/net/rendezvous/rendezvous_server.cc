// The launcher's side of the rendezvous of processes. One thread serves all workers and never
// blocks on one of them: a worker that is stopped delays nobody's deck but its own. A group has one
// open round; the server learns of a group by its first card.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "net/quiet_thread.h"
#include "net/rendezvous/frames.h"
#include "net/rendezvous/rendezvous.h"
#include "net/rendezvous/rendezvous_frames.h"

namespace tutti {

struct RendezvousServer::Impl {
  explicit Impl(std::vector<Fd> sockets);
  ~Impl();
  std::string fault() const {
    std::lock_guard lock(mutex_);
    return fault_;
  }

 private:
  struct Worker {
    Fd socket;  // closed once the worker is gone
    FrameReader reader;
    FrameWriter writer;
    uint32_t latest = 0;  // the epoch of the last card that it handed in
  };
  /// The cards of a group's open round, by rank.
  struct Round {
    std::vector<std::shared_ptr<Frame>> cards;
    std::vector<bool> answered;  // that the round cannot be completed
  };

  void serve();
  void serve_worker(int rank, bool readable);
  void flush(int rank);
  bool take_card(int worker, std::shared_ptr<Frame> frame);
  void lose(int rank);
  void deal_all();
  /// Whether the round is over.
  bool deal(const Group& group, Round& round);

  std::vector<Worker> workers_;
  std::map<Group, Round> rounds_;
  Fd epoll_, stop_;
  SystemClock clock_;
  mutable std::mutex mutex_;
  std::string fault_;  // the first one; the launcher reads it from another thread
  std::thread thread_;
};

RendezvousServer::Impl::Impl(std::vector<Fd> sockets)
    : workers_(sockets.size()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (!epoll_ || !stop_) throw_errno("start", "rendezvous");

  // Events carry the worker's number; the number after the last is the request to stop.
  auto watch = [&](int fd, uint32_t id) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = id;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      throw_errno("watch", "rendezvous socket");
  };
  for (size_t r = 0; r < sockets.size(); ++r) {
    workers_[r].socket = std::move(sockets[r]);
    watch(workers_[r].socket.get(), static_cast<uint32_t>(r));
  }
  watch(stop_.get(), static_cast<uint32_t>(sockets.size()));

  // Everything is in place before the thread begins: it reads all of it.
  thread_ = start_quiet_thread([this] { serve(); });
}

RendezvousServer::Impl::~Impl() {
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void RendezvousServer::Impl::serve() {
  size_t left = workers_.size();
  while (left > 0) {
    // Every event may close a socket; when the last one is closed nobody is left to serve. The
    // workers' processes end, and their sockets with them; who waits for an answer has a deadline.
    clock_.wait_fd(epoll_.get(), Deadline::never());
    epoll_event events[64];
    const int n = ::epoll_wait(epoll_.get(), events, 64, 0);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u32 == workers_.size()) return;
      serve_worker(static_cast<int>(events[i].data.u32),
                   (events[i].events & ~uint32_t{EPOLLOUT}) != 0);
    }

    left = 0;
    for (const Worker& worker : workers_) left += worker.socket ? 1 : 0;
  }
}

void RendezvousServer::Impl::serve_worker(int rank, bool readable) {
  Worker& worker = workers_[rank];
  if (!worker.socket) return;
  // What is still to be written comes first: its room may be why the worker was reported.
  flush(rank);
  while (readable && worker.socket) {
    auto frame = std::make_shared<Frame>();
    FrameProgress progress = FrameProgress::kClosed;
    bool understood = false;
    try {
      progress = worker.reader.read(worker.socket.get(), *frame);
      if (progress == FrameProgress::kMore) understood = take_card(rank, std::move(frame));
      // a worker that cannot be understood is as good as gone, and its peers hear so
    } catch (const Error& error) {
      progress = FrameProgress::kClosed;
      std::lock_guard lock(mutex_);
      if (fault_.empty()) fault_ = fmt::format("the launcher lost rank {}: {}", rank, error.what());
    }

    // A second card in one round, or anything but a card, is a worker that has lost its way.
    if (progress == FrameProgress::kBlocked) return;
    if (!understood) return lose(rank);
    deal_all();
  }
}

/// Whether the worker kept to the rules: a card at a time for a group that it is in.
bool RendezvousServer::Impl::take_card(int worker, std::shared_ptr<Frame> frame) {
  if (frame->kind != kCard) return false;
  const Group group = group_from(frame->group);
  const int place = group.place_of(worker);
  for (int member : group.members)
    if (member < 0 || member >= static_cast<int>(workers_.size())) return false;
  if (place < 0) return false;
  Round& round = rounds_[group];
  round.cards.resize(group.members.size());
  round.answered.resize(group.members.size(), false);
  if (round.cards[place] != nullptr) return false;
  frame->rank = worker;
  round.cards[place] = std::move(frame);
  uint32_t& latest = workers_[worker].latest;
  if (group.epoch != Group::kNoEpoch) latest = std::max(latest, group.epoch);
  return true;
}

void RendezvousServer::Impl::flush(int rank) {
  Worker& worker = workers_[rank];
  if (!worker.socket) return;
  const FrameProgress progress = worker.writer.write(worker.socket.get());
  // The worker is not lost here: reading finds the same, after what it sent before.
  if (progress == FrameProgress::kClosed) return;
  epoll_event event{};
  event.events = EPOLLIN | (progress == FrameProgress::kBlocked ? EPOLLOUT : 0);
  event.data.u32 = static_cast<uint32_t>(rank);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, worker.socket.get(), &event);
}

void RendezvousServer::Impl::lose(int rank) {
  workers_[rank].socket.reset();
  deal_all();
}

/// A card or a loss may end rounds of several groups: whoever went on to a later epoch will not
/// come to those of earlier ones.
void RendezvousServer::Impl::deal_all() {
  for (auto round = rounds_.begin(); round != rounds_.end();)
    round = deal(round->first, round->second) ? rounds_.erase(round) : std::next(round);
}

/// Hands out the deck when it is complete, or the bad news when it never will be.
bool RendezvousServer::Impl::deal(const Group& group, Round& round) {
  int missing = 0, gone = -1, coming = 0;
  for (size_t r = 0; r < group.members.size(); ++r) {
    if (round.cards[r] != nullptr) continue;
    const Worker& worker = workers_[group.members[r]];
    const bool lost = !worker.socket || group.left_by(worker.latest);
    ++missing;
    coming += lost ? 0 : 1;
    if (lost && gone < 0) gone = static_cast<int>(r);
  }
  if (missing > 0 && gone < 0) return false;

  // Those that come later to a round that is lost hear of it, too, so it is kept until all have.
  std::shared_ptr<Frame> news;
  if (missing > 0) {
    news = std::make_shared<Frame>();
    news->kind = kRankLeft;
    news->rank = gone;
    news->group = to_bytes(group);
  }
  for (size_t r = 0; r < group.members.size(); ++r) {
    Worker& worker = workers_[group.members[r]];
    if (news == nullptr) {
      for (const auto& card : round.cards) worker.writer.push(card);
    } else if (round.cards[r] != nullptr && !round.answered[r]) {
      worker.writer.push(news);
      round.answered[r] = true;
    }
    flush(group.members[r]);
  }
  return news == nullptr || coming == 0;
}

RendezvousServer::RendezvousServer(std::vector<Fd> sockets)
    : impl_(std::make_unique<Impl>(std::move(sockets))) {}
RendezvousServer::~RendezvousServer() = default;
std::string RendezvousServer::fault() const { return impl_->fault(); }

}  // namespace tutti
