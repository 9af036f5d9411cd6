#include "app/apart.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <span>

#include "base/error.h"
#include "base/message.h"

namespace tutti {

namespace {

/// Sets what the process says, and returns its exit code.
using Work = std::function<int(std::string& text)>;

[[noreturn]] void answer(const Work& work, int fd) noexcept {
  std::string text;
  int code = 1;
  try {
    code = work(text);
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

}  // namespace

Apart start_apart(const RunOptions& options) {
  return start([&](std::string& text) {
    const RunResult result = run(options);
    text = result.ok ? result.hash : result.failures.front();
    return !result.ok ? 1 : result.stopped ? 130 : 0;
  });
}

std::string answer_apart(const std::function<std::string()>& work) {
  Apart apart = start([&](std::string& text) {
    text = work();
    return 0;
  });
  RunResult result = finish_apart(apart);
  if (!result.ok) throw Error(result.failures.front());
  return result.hash;
}

RunResult finish_apart(Apart& apart) {
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
  RunResult result;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.ok = code == 0 || code == 130;
  result.stopped = code == 130;
  if (result.ok) {
    result.hash = text;
  } else {
    result.failures.push_back(text.empty() ? "the run ended without a word" : text);
  }
  return result;
}

size_t wait_any(const std::vector<Apart>& running) {
  std::vector<pollfd> waits;
  for (const Apart& apart : running) waits.push_back({apart.answer.get(), POLLIN, 0});
  while (::poll(waits.data(), waits.size(), -1) < 0 && errno == EINTR) {
  }
  for (size_t i = 0; i < waits.size(); ++i)
    if (waits[i].revents != 0) return i;
  return 0;
}

}  // namespace tutti
