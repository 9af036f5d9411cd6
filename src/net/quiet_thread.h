// Starts a thread that no signal is delivered to: the signals of a process are taken by its main
// thread. A thread inherits the mask of its maker, so all signals are blocked while it is made; one
// that arrives meanwhile waits and is not lost.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace tutti {

/// While it lives, no signal is delivered to the calling thread.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

/// Throws std::system_error where the system gives no more threads.
template <typename F>
std::thread start_quiet_thread(F&& body) {
  const NoSignals while_it_is_made;
  return std::thread(std::forward<F>(body));
}

}  // namespace tutti
