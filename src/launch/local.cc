// One supervisor loop for both kinds of rank: it sleeps on an epoll of (signals, ends of ranks) and
// looks at heartbeats.
#include "launch/local.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "base/text/message.h"
#include "launch/limits.h"
#include "launch/stop.h"

namespace tutti {

namespace {

// From the cancel to SIGKILL: long enough to unwind, short enough that all are gone within the
// promised second.
constexpr Duration kGrace = std::chrono::milliseconds(600);
int64_t nanoseconds(Time t) { return t.time_since_epoch().count(); }

/// What the supervisor knows of one rank.
struct Member {
  pid_t pid = 0;
  std::thread thread;
  bool ended = false;
  uint64_t beats = 0;  // counted when it was last heard, by the launcher's own time awake
  Time heard{};
};

class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, const std::function<void(RankContext&)>& body)
      : options_(options),
        body_(body),
        control_(options.ranks),
        members_(options.ranks),
        killed_(options.ranks, false) {
    sigset_t wanted = stop_set();
    sigaddset(&wanted, SIGCHLD);
    signals_ = Fd(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
    ends_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!signals_ || !ends_ || !epoll_) throw_errno("make", "the launcher's descriptors");
    ::pthread_sigmask(SIG_BLOCK, &wanted, &old_mask_);
    for (int fd : {signals_.get(), ends_.get()}) {
      epoll_event event{};
      event.events = EPOLLIN;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
    }
  }

  ~Supervisor() { ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr); }

  LaunchResult run() {
    for (Member& member : members_) member.heard = clock_.awake();
    try {
      options_.threads ? start_threads() : start_processes();
    } catch (const std::exception& e) {
      // A limit of the system, or a request to stop, which says more than that ranks are missing:
      // those that have started end as with any failure.
      take_requests();
      if (!first_) fail(e.what());
      for (Member& member : members_) member.ended = member.pid == 0 && !member.thread.joinable();
    }
    if (options_.started && causes_.empty())
      for (int r = 0; r < options_.ranks; ++r)
        options_.started(r, options_.threads ? ::getpid() : members_[r].pid);
    while (running() > 0) {
      clock_.wait_fd(epoll_.get(), clock_.after(std::chrono::milliseconds(100)));
      take_requests();
      take_faults();
      take_ends();
      watch_beats(options_.timeout);
      end_the_cancelled();
    }
    for (auto& member : members_)
      if (member.thread.joinable()) member.thread.join();
    take_faults();
    return result();
  }

 private:
  LaunchResult result() {
    result_.failures = std::move(causes_);
    // A rank that lost a peer because that one had lost another is named after it.
    std::sort(consequences_.begin(), consequences_.end());
    for (auto& [time, message] : consequences_) result_.failures.push_back(std::move(message));
    result_.signal = first_ ? first_->signal : 0;
    result_.heeded = control_->heeded.load() != 0;
    result_.result = control_->result;
    return std::move(result_);
  }

  Control::Rank& rank(int r) { return control_->ranks()[static_cast<size_t>(r)]; }

  int running() const {
    return static_cast<int>(
        std::count_if(members_.begin(), members_.end(), [](const Member& m) { return !m.ended; }));
  }

  void start_processes() {
    std::vector<Fd> mine, theirs;
    for (int r = 0; r < options_.ranks; ++r) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        throw_errno("make", "a socket pair");
      mine.emplace_back(pair[0]);
      theirs.emplace_back(pair[1]);
    }
    options_.host != nullptr ? adopt(std::move(theirs)) : fork_here(mine, theirs);
    theirs.clear();
    server_ = std::make_unique<RendezvousServer>(std::move(mine));
  }

  void adopt(std::vector<Fd> sockets) {
    const std::vector<pid_t> pids =
        options_.host->fork_ranks(control_, std::move(sockets), options_.kept, options_.task);
    TUTTI_CHECK(pids.size() == members_.size(), "{} ranks of {}", pids.size(), members_.size());
    for (size_t r = 0; r < pids.size(); ++r) members_[r].pid = pids[r];
  }

  void fork_here(std::vector<Fd>& mine, std::vector<Fd>& theirs) {
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    for (int r = 0; r < options_.ranks; ++r) {
      const pid_t pid = ::fork();
      if (pid < 0) {
        fail(fmt::format("cannot start rank {}: {}", r, std::strerror(errno)));
        members_[r].ended = true;
        continue;
      }
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(kCancelled);
        Fd socket = std::move(theirs[r]);
        mine.clear();
        theirs.clear();
        become_rank(r, options_.ranks, std::move(socket), *control_, clock_, old_mask_, body_);
      }
      members_[r].pid = pid;
    }
  }

  void start_threads() {
    threads_ = std::make_unique<ThreadRendezvous>(options_.ranks, clock_, &control_->cancel);
    codes_.assign(options_.ranks, 0);
    for (int r = 0; r < options_.ranks; ++r)
      members_[r].thread = std::thread([this, r] {
        codes_[r] = run_thread(r);
        uint64_t one = 1;
        (void)!::write(ends_.get(), &one, sizeof one);
      });
  }

  RankEnd run_thread(int r) {
    try {
      auto rendezvous = threads_->view(r);
      RankContext context{r, options_.ranks, clock_, *control_, *rendezvous, r};
      sigset_t none;  // the launcher takes them all
      sigemptyset(&none);
      return run_rank(context, body_, none, options_.ranks);
    } catch (const std::exception& e) {  // what it runs in could not be made
      std::snprintf(rank(r).message, sizeof rank(r).message, "rank %d: %s", r, e.what());
      rank(r).done.store(1);
      return kFailed;
    }
  }

  void take_requests() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGCHLD) heed({static_cast<int>(info.ssi_signo), clock_.now()});
    for (int r = 0; r < options_.ranks; ++r)
      if (rank(r).asked.exchange(0) != 0) heed({SIGTERM, clock_.now(), r});
  }

  void heed(const StopRequest& request) {
    if (control_->cancel.cancelled()) return;  // it is ending
    const auto has_begun = [](const Control::Rank& rank) { return rank.begun.load() != 0; };
    const auto ranks = control_->ranks();
    const bool begun = std::any_of(ranks.begin(), ranks.end(), has_begun);
    const StopAction action = decide_stop(request, first_, begun);
    if (!first_) first_ = request;
    if (action == StopAction::kNone) return;
    const std::string words = stop_words(request, action, begun);
    if (options_.say) options_.say(words);
    control_->stop.store(1);
    result_.at_once = action == StopAction::kAtOnce;
    if (result_.at_once) fail(words);
  }

  /// What kept the launcher from serving a rank is the cause of all that follows.
  void take_faults() {
    if (server_ == nullptr) return;
    if (const std::string fault = server_->fault(); !fault.empty()) fail(fault);
  }

  void take_ends() {
    uint64_t count = 0;
    (void)!::read(ends_.get(), &count, sizeof count);
    for (int r = 0; r < options_.ranks; ++r) {
      Member& member = members_[r];
      if (member.ended) continue;
      int status = 0;
      if (options_.threads) {
        if (rank(r).done.load() == 0) continue;
        member.thread.join();
        status = codes_[r] << 8;
      } else if (::waitpid(member.pid, &status, WNOHANG) != member.pid) {
        continue;
      }
      member.ended = true;
      judge(r, status);
    }
  }

  void judge(int r, int status) {
    if (WIFSIGNALED(status)) {
      int signal = WTERMSIG(status);
      if (killed_[r]) return;  // by us, after the cancel
      fail(fmt::format("rank {} (pid {}) was killed by signal {} ({})", r, members_[r].pid, signal,
                       strsignal(signal)));
      return;
    }
    const int code = WEXITSTATUS(status);
    if (code == 0 || code == kCancelled) return;
    std::string message = rank(r).message;
    if (message.empty())
      message = fmt::format("rank {} (pid {}) ended with code {}", r, members_[r].pid, code);
    if (code != kLostPeer) return fail(message);
    // Whoever waited for a silent rank, or for one that did, gave up at about the time that the
    // silence became a fault.
    watch_beats(options_.timeout / 2);
    const int64_t time = rank(r).failed_at.load();
    // it lost a rank that had been cancelled
    if (cancelled_at_ != Time{} && time > nanoseconds(cancelled_at_)) return;
    consequences_.emplace_back(time, message);
    cancel(message);
  }

  /// A rank that neither ends nor beats is stopped or stuck in the kernel: silence is told from
  /// death here.
  void watch_beats(Duration limit) {
    if (control_->cancel.cancelled()) return;
    for (int r = 0; r < options_.ranks; ++r) {
      const Control::Rank& its = rank(r);
      Member& member = members_[r];
      const Time now = clock_.awake();
      if (const uint64_t beats = its.beats.load(); beats != member.beats)
        member.beats = beats, member.heard = now;
      const Duration silent = now - member.heard;
      if (member.ended || its.done.load() != 0 || silent < std::max(limit, 3 * kBeat)) continue;
      fail(fmt::format("rank {} (pid {}) was silent for {:.1f} s (stopped, or stuck in the system)",
                       r, members_[r].pid, std::chrono::duration<double>(silent).count()));
      kill_rank(r);  // it cannot hear the cancel
    }
  }

  void end_the_cancelled() {
    if (cancelled_at_ == Time{} || clock_.now() < cancelled_at_ + kGrace) return;
    if (options_.threads && options_.abandon && running() > 0) options_.abandon(result());
    for (int r = 0; r < options_.ranks; ++r)
      if (kill_rank(r)) result_.deaf.push_back(r);
  }

  bool kill_rank(int r) {
    if (options_.threads || members_[r].ended || killed_[r]) return false;
    killed_[r] = true;
    return ::kill(members_[r].pid, SIGKILL) == 0;
  }

  /// The same sentence from several ranks is said once.
  void fail(const std::string& message) {
    if (std::find(causes_.begin(), causes_.end(), message) == causes_.end())
      causes_.push_back(message);
    cancel(message);
  }

  void cancel(const std::string& reason) {
    if (cancelled_at_ == Time{}) cancelled_at_ = clock_.now();
    control_->cancel.cancel(reason);
  }

  const LaunchOptions& options_;
  const std::function<void(RankContext&)>& body_;
  SystemClock clock_;
  SharedControl control_;
  sigset_t old_mask_{};
  Fd signals_, ends_, epoll_;
  std::vector<Member> members_;
  std::vector<int> codes_;
  std::vector<bool> killed_;  // by this launcher, after the cancel
  Time cancelled_at_{};
  std::optional<StopRequest> first_;
  // What a rank says of a lost peer comes after what happened to that peer, in whichever order the
  // two are learnt.
  std::vector<std::string> causes_;
  std::vector<std::pair<int64_t, std::string>> consequences_;  // by the time of the failure
  std::unique_ptr<RendezvousServer> server_;
  std::unique_ptr<ThreadRendezvous> threads_;
  LaunchResult result_;
};

}  // namespace

LaunchResult launch_local(const LaunchOptions& options,
                          const std::function<void(RankContext&)>& body) {
  TUTTI_CHECK(options.ranks >= 1, "{} ranks", options.ranks);
  raise_file_limit();
  try {
    return Supervisor(options, body).run();
  } catch (const Error& e) {  // it could not be made: no rank was started
    LaunchResult nothing;
    nothing.failures = {e.what()};
    return nothing;
  }
}

}  // namespace tutti
