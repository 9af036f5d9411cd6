// Holds the threads at a gate until all of them are there. What is measured on them then runs at
// the same time, and nothing runs if one of them cannot be started.
#include "app/at_once.h"

#include <atomic>
#include <thread>
#include <vector>

namespace tutti {

void at_once(int threads, const std::function<void(int)>& body) {
  enum Go { kWait, kRun, kLeave };
  std::atomic<Go> go{kWait};
  std::vector<std::thread> running;
  const auto release = [&](Go how) {
    go.store(how);
    go.notify_all();
    for (std::thread& thread : running) thread.join();
  };

  // Bodies may wait for each other, so none runs before all are there.
  try {
    for (int t = 0; t < threads; ++t)
      running.emplace_back([&go, t, body] {
        go.wait(kWait);
        if (go.load() == kRun) body(t);
      });
  } catch (...) {
    release(kLeave);
    throw;
  }
  release(kRun);
}

}  // namespace tutti
