// The two sides of a rank host. The host forks the ranks and ends, so that they become children of
// the launcher, which is their subreaper, and die with it.
#include "launch/rank_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/process_work.h"
#include "base/stop_signals.h"
#include "base/text/message.h"
#include "net/rendezvous/frames.h"

extern char** environ;  // NOLINT(readability-identifier-naming): POSIX names it

namespace tutti {

namespace {

constexpr const char* kVariable = "TUTTI_RANK_HOST";
// The kinds of frames in the conversation that launch/rank_host.h shows.
enum : uint32_t { kReady = 1, kTask, kSocket, kForked, kRefused };
// From the host's last word to its end, and from there to its ranks' new parent: both at once.
constexpr Duration kSoon = std::chrono::seconds(10);

void add_to(const Fd& epoll, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("watch", "a rank host");
}

Fd epoll_of(int fd, uint32_t events) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) throw_errno("watch", "a rank host");
  add_to(epoll, fd, events);
  return epoll;
}

/// Stop signals that the caller holds, as a descriptor that is readable when one has come.
Fd stops_that_come() {
  const sigset_t stops = stop_set();
  Fd signals(::signalfd(-1, &stops, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals) throw_errno("make", "a descriptor for signals");
  return signals;
}

bool has_come(const Fd& stops) {
  pollfd look{stops.get(), POLLIN, 0};
  return stops && ::poll(&look, 1, 0) == 1;
}

// Both of the following throw Error when a signal comes on `stops`, if that is a descriptor. They
// leave the signal to the caller.

/// Writes all of it; false: the other side is gone. Throws Error when it takes nothing for long.
bool write_frames(const Fd& socket, std::vector<std::shared_ptr<const Frame>> frames,
                  const Fd& stops = {}) {
  SystemClock clock;
  const Fd room = epoll_of(socket.get(), EPOLLOUT);
  if (stops) add_to(room, stops.get(), EPOLLIN);
  FrameWriter writer;
  for (auto& frame : frames) writer.push(std::move(frame));
  while (true) {
    const FrameProgress progress = writer.write(socket.get());
    if (progress == FrameProgress::kMore) return true;
    if (progress == FrameProgress::kClosed) return false;
    if (clock.wait_fd(room.get(), clock.after(kSoon)) == WaitResult::kTimedOut)
      throw Error("ranks are not started: the process at the other end takes nothing");
    if (has_come(stops)) throw Error("stopped while ranks were started");
  }
}

/// The next frame; none: the other side is gone. Throws Error when the patience ends.
std::optional<Frame> read_frame(const Fd& socket, FrameReader& reader, Patience patience,
                                const Fd& stops = {}) {
  SystemClock clock;
  const Fd more = epoll_of(socket.get(), EPOLLIN);
  if (stops) add_to(more, stops.get(), EPOLLIN);
  Frame frame;
  while (true) {
    const FrameProgress progress = reader.read(socket.get(), frame);
    if (progress == FrameProgress::kMore) return frame;
    if (progress == FrameProgress::kClosed) return std::nullopt;
    const bool silent = clock.wait_fd(more.get(), patience.deadline()) == WaitResult::kTimedOut;
    if (has_come(stops)) throw Error("stopped while ranks were started");
    if (silent && !patience.extend())
      throw Error("ranks are not started: the process at the other end does nothing");
  }
}

std::shared_ptr<Frame> frame_of(uint32_t kind, std::string bytes) {
  auto frame = std::make_shared<Frame>();
  frame->kind = kind;
  frame->bytes = std::move(bytes);
  return frame;
}

/// What the variable in a host's environment says: which descriptor leads to the launcher, and who
/// that is.
struct Invitation {
  int socket = -1;
  pid_t launcher = -1;
};

/// The invitation to this process; none: nobody executed it to be a host. A variable that was
/// handed on to somebody else's child means nothing there. Ends the process where it is a host
/// whose launcher is gone: it must not take itself for a command of its own.
std::optional<Invitation> invitation() {
  const char* value = std::getenv(kVariable);
  Invitation found;
  if (value == nullptr || std::sscanf(value, "%d:%d", &found.socket, &found.launcher) != 2)
    return std::nullopt;

  // A pair of sockets remembers who made it.
  ucred maker{};
  socklen_t size = sizeof maker;
  if (::getsockopt(found.socket, SOL_SOCKET, SO_PEERCRED, &maker, &size) != 0 ||
      maker.pid != found.launcher)
    return std::nullopt;
  if (::getppid() == found.launcher) return found;

  // The parent is another one: either a host started this process, or the launcher has ended, and
  // its end of the socket with it.
  pollfd other{found.socket, 0, 0};
  if (::poll(&other, 1, 0) == 1 && (other.revents & POLLHUP) != 0) ::_exit(kCancelled);
  return std::nullopt;
}

Fd duplicate(int fd) {
  Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw_errno("duplicate", "a descriptor for the ranks");
  return copy;
}

}  // namespace

RankHost::RankHost(const std::string& program, const std::vector<std::string>& arguments,
                   Duration silence)
    : silence_(silence) {
  // The ranks outlive the host and are this process's from then on.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw_errno("adopt", "ranks");
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw_errno("make", "a socket pair");
  socket_ = Fd(pair[0]);
  const Fd theirs(pair[1]);

  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.data()));
  words.push_back(nullptr);
  const std::string name = std::string(kVariable) + "=";
  const std::string variable =
      name + std::to_string(theirs.get()) + ":" + std::to_string(::getpid());
  std::vector<char*> variables;
  // A host reads the first variable of this name: one of another launcher must not come before.
  for (char** v = environ; *v != nullptr; ++v)
    if (!std::string_view(*v).starts_with(name)) variables.push_back(*v);
  variables.push_back(const_cast<char*>(variable.data()));
  variables.push_back(nullptr);

  // Its end of the socket stays open across the exec: it is moved to itself, which clears the flag
  // that would close it.
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), theirs.get());
  // What this process holds, so that no stop signal is lost, the program must obey.
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  for (int signal : stop_signals()) sigdelset(&mask, signal);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  const int error =
      ::posix_spawn(&pid_, program.c_str(), &actions, &attributes, words.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    pid_ = -1;
    throw Error(fmt::format("cannot start {}: {}", program, std::strerror(error)));
  }
}

RankHost::~RankHost() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  finish();
}

/// Waits for its end, which has come or is about to.
void RankHost::finish() {
  if (pid_ < 0) return;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  killed_by_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  code_ = killed_by_ != 0 ? stop_code(killed_by_) : WEXITSTATUS(status);
  pid_ = -1;
}

Patience RankHost::while_host_works(const Clock& clock) const {
  return {clock, silence_, [pid = pid_] { return work_of(pid); }};
}

std::optional<std::string> RankHost::ready() {
  const sigset_t stops = stop_set();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &stops, &before);
  const Fd signals = stops_that_come();
  const Fd epoll = epoll_of(socket_.get(), EPOLLIN);
  add_to(epoll, signals.get(), EPOLLIN);

  SystemClock clock;
  Patience patience = while_host_works(clock);
  FrameReader reader;
  Frame frame;
  FrameProgress progress = FrameProgress::kBlocked;
  while ((progress = reader.read(socket_.get(), frame)) == FrameProgress::kBlocked) {
    if (clock.wait_fd(epoll.get(), patience.deadline()) == WaitResult::kTimedOut &&
        !patience.extend()) {
      ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw Error(
          fmt::format("process {}, which loads what ranks need, has done nothing for {:g} s", pid_,
                      std::chrono::duration<double>(silence_).count()));
    }
    signalfd_siginfo info{};
    while (::read(signals.get(), &info, sizeof info) == sizeof info)
      ::kill(pid_, static_cast<int>(info.ssi_signo));
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (progress == FrameProgress::kMore) return std::move(frame.bytes);
  finish();
  return std::nullopt;
}

std::vector<pid_t> RankHost::fork_ranks(const SharedControl& control, std::vector<Fd> sockets,
                                        const std::vector<int>& kept, const std::string& task) {
  std::vector<std::shared_ptr<const Frame>> frames;
  auto first = frame_of(kTask, task);
  first->rank = static_cast<int32_t>(sockets.size());
  first->fds.push_back(duplicate(control.fd()));
  for (int fd : kept) first->fds.push_back(duplicate(fd));
  frames.push_back(std::move(first));
  for (Fd& socket : sockets) {
    auto frame = frame_of(kSocket, "");
    frame->fds.push_back(std::move(socket));
    frames.push_back(std::move(frame));
  }

  SystemClock clock;
  FrameReader reader;
  std::optional<Frame> answer;
  const Fd stops = stops_that_come();
  try {
    // A host that refuses before it has taken everything has answered all the same.
    write_frames(socket_, std::move(frames), stops);
    answer = read_frame(socket_, reader, while_host_works(clock), stops);
  } catch (...) {
    ::kill(pid_, SIGKILL);  // it may be one that is stopped and hears nothing else
    finish();
    throw;
  }
  finish();
  if (!answer || answer->kind != kForked)
    throw Error(answer && answer->kind == kRefused ? answer->bytes
                                                   : "the process that starts the ranks has ended");
  std::vector<pid_t> pids(answer->bytes.size() / sizeof(pid_t));
  std::memcpy(pids.data(), answer->bytes.data(), pids.size() * sizeof(pid_t));
  return pids;
}

std::optional<HostedProgram> HostedProgram::inherited() {
  const std::optional<Invitation> invited = invitation();
  ::unsetenv(kVariable);
  if (!invited) return std::nullopt;
  ::fcntl(invited->socket, F_SETFD, FD_CLOEXEC);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != invited->launcher) ::_exit(kCancelled);
  return HostedProgram(Fd(invited->socket), invited->launcher);
}

bool HostedProgram::is_hosted() { return invitation().has_value(); }

void HostedProgram::ready(const std::string& text) {
  if (!write_frames(socket_, {frame_of(kReady, text)})) ::_exit(kCancelled);
}

void HostedProgram::serve(const std::function<void(RankContext&, const std::string& task)>& rank) {
  std::string refusal;
  try {
    fork_ranks(rank);
  } catch (const std::exception& e) {
    refusal = message_of(e);
  }
  write_frames(socket_, {frame_of(kRefused, refusal)});
  ::_exit(kFailed);
}

/// Returns only by an exception, when no rank was started or none is left.
void HostedProgram::fork_ranks(
    const std::function<void(RankContext&, const std::string& task)>& rank) {
  // A fork takes one thread along: what others hold would be held in the ranks for good.
#if !__has_feature(thread_sanitizer)  // it has a thread of its own
  const auto threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  if (threads != 1)
    throw Error(
        fmt::format("this process cannot fork ranks, since it has {} threads: start threads, "
                    "and compute with LibTorch, in the ranks alone",
                    threads));
#endif

  // The launcher sends the task with its control block, then one socket per rank. There is no
  // deadline: it may first do whatever it likes, and this process dies with it.
  const Patience patience = Deadline::never();
  FrameReader reader;
  std::optional<Frame> task = read_frame(socket_, reader, patience);
  if (!task) ::_exit(kCancelled);  // the launcher is gone, or had nothing for ranks to do
  std::vector<Fd> sockets;
  for (int r = 0; r < task->rank; ++r) {
    std::optional<Frame> frame = read_frame(socket_, reader, patience);
    if (!frame || frame->fds.size() != 1) ::_exit(kCancelled);
    sockets.push_back(std::move(frame->fds.front()));
  }
  const SharedControl control(std::move(task->fds.front()));
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);

  // A rank learns from this pipe that the host has ended: only the host has its other end.
  int alive[2];
  if (::pipe2(alive, O_CLOEXEC) != 0) throw_errno("make", "a pipe");
  const pid_t host = ::getpid();
  const int ranks = static_cast<int>(sockets.size());
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  for (int r = 0; r < ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid > 0) pids.push_back(pid);
    if (pid > 0) continue;
    if (pid < 0) {
      const std::string reason = fmt::format("cannot start rank {}: {}", r, std::strerror(errno));
      for (pid_t started : pids) ::kill(started, SIGKILL);
      for (pid_t started : pids) ::waitpid(started, nullptr, 0);
      throw Error(reason);
    }

    // This is the rank. It begins when the host has ended and the launcher is its parent, with
    // which it then dies.
    ::close(alive[1]);
    char nothing = 0;
    while (::read(alive[0], &nothing, 1) < 0 && errno == EINTR) {
    }
    ::close(alive[0]);
    SystemClock clock;
    const Deadline soon = clock.after(kSoon);
    while (::getppid() == host && !clock.passed(soon))
      clock.sleep(std::chrono::microseconds(100), nullptr);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != launcher_) ::_exit(kCancelled);
    Fd socket = std::move(sockets[r]);
    sockets.clear();
    socket_.reset();
    become_rank(r, ranks, std::move(socket), *control, clock, mask,
                [&](RankContext& context) { rank(context, task->bytes); });
  }
  std::string bytes(reinterpret_cast<const char*>(pids.data()), pids.size() * sizeof(pid_t));
  write_frames(socket_, {frame_of(kForked, std::move(bytes))});
  ::_exit(kWell);
}

}  // namespace tutti
