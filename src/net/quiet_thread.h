// A thread that no signal is delivered to: those of the process belong to its main thread.
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
