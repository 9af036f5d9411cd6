// Dispositions and masks of the stop signals. All of them go by stop_signals(), so that an ignored
// one is never touched.
#include "base/stop_signals.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

namespace tutti {

namespace {

// The process that speaks in the handler, which gets no argument of ours. A forked child has the
// handler, too, until it sets another one; it ends without a word.
volatile pid_t speaker = 0;

/// Calls only what is safe in a signal handler.
void end_now(int signal) {
  if (::getpid() != speaker) ::_exit(stop_code(signal));
  for (const char* part : {"tutti: ", stop_name(signal),
                           ": stopped before the first step; there is nothing to save\n"})
    (void)!::write(STDERR_FILENO, part, ::strlen(part));
  ::_exit(stop_code(signal));
}

}  // namespace

std::vector<int> stop_signals() {
  std::vector<int> obeyed;
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN)
      obeyed.push_back(signal);
  }
  return obeyed;
}

sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : stop_signals()) sigaddset(&set, signal);
  return set;
}

const char* stop_name(int signal) {
  return signal == SIGINT    ? "Ctrl-C"
         : signal == SIGTERM ? "SIGTERM"
                             : "SIGHUP (the terminal has closed)";
}

void die_of_stop_signals() {
  for (int signal : stop_signals()) ::signal(signal, SIG_DFL);
}

EndOnStop::EndOnStop() : signals_(stop_signals()) {
  speaker = ::getpid();
  for (int signal : signals_) ::signal(signal, end_now);
}

EndOnStop::~EndOnStop() {
  for (int signal : signals_) ::signal(signal, SIG_DFL);
}

HeldStops::HeldStops() : held_(stop_set()) { ::pthread_sigmask(SIG_BLOCK, &held_, &before_); }

HeldStops::~HeldStops() {
  // Whatever is still pending would arrive once it is let through, so it is taken first.
  const timespec now{};
  while (::sigtimedwait(&held_, nullptr, &now) > 0) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace tutti
