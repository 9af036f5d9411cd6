// The child answers through a pipe. The parent waits for the pipe and not for the process, since a
// process that a driver holds may never end.
#include "device/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "base/text/message.h"
#include "base/wait.h"

namespace tutti {

namespace {

// The first byte of what a child writes tells an answer from an exception's words.
constexpr char kAnswer = '+', kFailure = '-';

/// The child's part. It ends without the destructors and exit handlers of the copied process.
[[noreturn]] void answer(FunctionRef<std::string()> work, int pipe) {
  std::string text;
  try {
    text = kAnswer + work();
  } catch (const std::exception& error) {
    text = kFailure + message_of(error);
  }
  try {
    write_all(pipe, std::as_bytes(std::span(text)), "a pipe");
  } catch (const Error&) {
    ::_exit(1);  // the parent reads no longer
  }
  ::_exit(0);
}

/// Reads all that is written until the other end closes; none if the deadline passes first.
std::optional<std::string> read_all(int pipe, Clock& clock, Deadline deadline) {
  const Fd waits(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (!waits || ::epoll_ctl(waits.get(), EPOLL_CTL_ADD, pipe, &event) != 0)
    throw_errno("wait for", "a pipe");
  std::string text;
  std::array<char, 4096> part{};
  while (clock.wait_fd(waits.get(), deadline) == WaitResult::kReady) {
    const ssize_t n = ::read(pipe, part.data(), part.size());
    if (n == 0) return text;
    if (n > 0) text.append(part.data(), static_cast<size_t>(n));
    if (n < 0 && errno != EINTR) throw_errno("read", "a pipe");
  }
  return std::nullopt;
}

/// The status of a child that has ended; none if it has not by the deadline. A child that a driver
/// holds in the kernel may not end at all, not even when it is killed: then it is left behind.
std::optional<int> reap(pid_t child, Clock& clock, Deadline deadline) {
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if ((ended < 0 && errno != EINTR) || clock.passed(deadline)) return std::nullopt;
    clock.sleep(std::chrono::milliseconds(2), nullptr);
  }
}

/// How a child without an answer ended, for the message.
std::string end_of(const std::optional<int>& status) {
  if (!status) return "it did not end";
  if (WIFSIGNALED(*status))
    return fmt::format("killed by signal {} ({})", WTERMSIG(*status), strsignal(WTERMSIG(*status)));
  return fmt::format("ended with code {}", WEXITSTATUS(*status));
}

}  // namespace

ChildAnswer in_child(FunctionRef<std::string()> work, double seconds) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make", "a pipe");
  Fd read_end(ends[0]), write_end(ends[1]);

  // The child would otherwise print what is still in the buffers, too.
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw_errno("start", "a process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
    die_of_stop_signals();
    answer(work, write_end.get());
  }

  // Closed here, so that the pipe ends when the child does.
  write_end.reset();
  constexpr auto kGrace = std::chrono::seconds(2);  // for the child to end in
  SystemClock clock;
  const Deadline deadline =
      clock.after(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
  const std::optional<std::string> text = read_all(read_end.get(), clock, deadline);
  if (!text) ::kill(child, SIGKILL);

  const std::optional<int> status = reap(child, clock, clock.after(kGrace));
  if (!text) return {ChildAnswer::End::kDied, fmt::format("no answer within {:g} s", seconds)};
  if (text->starts_with(kAnswer)) return {ChildAnswer::End::kAnswered, text->substr(1)};
  if (text->starts_with(kFailure)) return {ChildAnswer::End::kThrew, text->substr(1)};
  if (!status) ::kill(child, SIGKILL);
  return {ChildAnswer::End::kDied, end_of(status)};
}

}  // namespace tutti
