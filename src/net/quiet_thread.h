// Starts a thread that no signal is delivered to: the signals of a process are taken by its main
// thread. A thread inherits the mask of its maker, so all signals are blocked while it is made; one
// that arrives meanwhile waits and is not lost.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace tutti {

template <typename F>
std::thread start_quiet_thread(F&& body) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::forward<F>(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace tutti
