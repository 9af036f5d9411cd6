// The launcher's side of the rendezvous of processes. One thread serves all workers and never
// blocks on one of them: a worker that is stopped delays nobody's deck but its own.
//
// A round is open until the card of every worker is there; then the deck is dealt and the next
// round opens. When a worker is gone, the round can never be completed, and all who have handed in
// a card are told once who left.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

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
    std::shared_ptr<Frame> card;  // handed in for the round that is open; null: not yet
    bool answered = false;        // it was told that the round cannot be completed
  };

  void serve();
  void serve_worker(int rank, bool readable);
  void flush(int rank);
  void lose(int rank);
  void deal();

  std::vector<Worker> workers_;
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
    // Every event may close a socket; when the last one is closed nobody is left to serve.
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
    try {
      progress = worker.reader.read(worker.socket.get(), *frame);
    } catch (const Error& error) {
      // A worker that cannot be understood counts as gone, and its peers are told so.
      std::lock_guard lock(mutex_);
      if (fault_.empty()) fault_ = fmt::format("the launcher lost rank {}: {}", rank, error.what());
    }

    // A second card in one round, or anything but a card, is a worker that has lost its way.
    if (progress == FrameProgress::kBlocked) return;
    if (progress == FrameProgress::kClosed || frame->kind != kCard || worker.card != nullptr)
      return lose(rank);

    // The rank is who owns this socket, whatever the frame says.
    frame->rank = rank;
    worker.card = std::move(frame);
    deal();
  }
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
  deal();
}

/// Hands out the deck when it is complete, or the bad news when it never will be.
void RendezvousServer::Impl::deal() {
  // Nothing is dealt while a card is missing that may still come.
  int missing = 0, gone = -1;
  for (size_t r = 0; r < workers_.size(); ++r) {
    if (workers_[r].card != nullptr) continue;
    ++missing;
    if (!workers_[r].socket && gone < 0) gone = static_cast<int>(r);
  }
  if (missing > 0 && gone < 0) return;

  // The bad news goes to those who wait, and to each of them once; who hands
  // in a card later gets it then.
  std::shared_ptr<Frame> news;
  if (missing > 0) {
    news = std::make_shared<Frame>();
    news->kind = kRankLeft;
    news->rank = gone;
  }
  for (size_t r = 0; r < workers_.size(); ++r) {
    Worker& worker = workers_[r];
    if (news != nullptr) {
      if (worker.card == nullptr || worker.answered) continue;
      worker.writer.push(news);
      worker.answered = true;
    } else {
      for (Worker& other : workers_) worker.writer.push(other.card);
    }
    flush(static_cast<int>(r));
  }

  // The next round opens. The writers keep the dealt cards until they have left.
  if (news == nullptr) {
    for (Worker& worker : workers_) worker.card = nullptr;
  }
}

RendezvousServer::RendezvousServer(std::vector<Fd> sockets)
    : impl_(std::make_unique<Impl>(std::move(sockets))) {}
RendezvousServer::~RendezvousServer() = default;
std::string RendezvousServer::fault() const { return impl_->fault(); }

}  // namespace tutti
