// A child answers through a pipe with a text, and its exit code says whether the work threw. It
// dies with its parent.
#include "app/apart.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/patience.h"
#include "base/process_work.h"
#include "base/stop_signals.h"
#include "base/text/message.h"

namespace tutti {

namespace {

using nlohmann::json;

/// What the process says when it ends.
using Work = std::function<std::string()>;
constexpr int kAnswered = 0, kThrew = 1;  // exit codes

[[noreturn]] void answer(const Work& work, int fd) noexcept {
  std::string text;
  int code = kThrew;
  try {
    text = work();
    code = kAnswered;
  } catch (const std::exception& e) {
    text = message_of(e);
  }
  write_all(fd, std::as_bytes(std::span(text)), "the answer");
  ::_exit(code);
}

Apart start(const Work& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make", "a pipe");
  Fd read_end(ends[0]), write_end(ends[1]);
  std::fflush(nullptr);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw_errno("start", "a process");
  if (child > 0) return {child, std::move(read_end)};
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it died before that
  answer(work, write_end.get());
}

/// Waits until it says something or ends. Ends it, and throws Error, when it has done nothing for
/// so long.
void wait_while_working(const Apart& apart, Duration silence) {
  const Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (!epoll || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, apart.answer.get(), &event) != 0)
    throw_errno("wait for", "a process");
  SystemClock clock;
  Patience patience(clock, silence, [&] { return work_of(apart.pid); });
  while (clock.wait_fd(epoll.get(), patience.deadline()) == WaitResult::kTimedOut)
    if (!patience.extend()) {
      ::kill(apart.pid, SIGKILL);
      throw Error(fmt::format("process {} has done nothing for {:g} s", apart.pid,
                              std::chrono::duration<double>(silence).count()));
    }
}

/// Waits for the end. Throws Error with what the process threw, or how it died.
std::string finish(Apart& apart) {
  std::string text;
  std::array<char, 512> part{};
  while (true) {
    const ssize_t n = ::read(apart.answer.get(), part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(part.data(), static_cast<size_t>(n));
  }
  int status = 0;
  while (::waitpid(apart.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status))
    throw Error(fmt::format("process {} was killed by signal {} ({})", apart.pid, WTERMSIG(status),
                            ::strsignal(WTERMSIG(status))));
  if (WEXITSTATUS(status) != kAnswered) throw Error(text);
  return text;
}

}  // namespace

Apart start_apart(const RunOptions& options) {
  return start([&] {
    const RunResult result = run(options);
    return json{{"ok", result.ok},
                {"stopped_by", result.stopped_by},
                {"failures", result.failures},
                {"hash", result.hash},
                {"folder", result.folder}}
        .dump(-1, ' ', false, json::error_handler_t::replace);
  });
}

RunResult finish_apart(Apart& apart) {
  RunResult result;
  try {
    const json told = json::parse(finish(apart));
    told.at("ok").get_to(result.ok);
    told.at("stopped_by").get_to(result.stopped_by);
    told.at("failures").get_to(result.failures);
    told.at("hash").get_to(result.hash);
    told.at("folder").get_to(result.folder);
  } catch (const Error& error) {
    result.failures.emplace_back(error.what());
  }
  return result;
}

std::string answer_apart(const std::function<std::string()>& work, Duration silence) {
  Apart apart = start([&] {
    die_of_stop_signals();
    return work();
  });
  wait_while_working(apart, silence);
  return finish(apart);
}

std::optional<size_t> wait_any(const std::vector<Apart>& running, int also, Duration at_most) {
  std::vector<pollfd> waits;
  for (const Apart& apart : running) waits.push_back({apart.answer.get(), POLLIN, 0});
  waits.push_back({also, POLLIN, 0});
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(at_most);
  while (::poll(waits.data(), waits.size(), static_cast<int>(limit.count())) < 0 &&
         errno == EINTR) {
  }
  for (size_t i = 0; i < running.size(); ++i)
    if (waits[i].revents != 0) return i;
  return std::nullopt;
}

}  // namespace tutti
