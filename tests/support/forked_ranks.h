// Two ways to run a body on n ranks: forked processes (that can really be killed) and threads. Both
// hand every rank a Rendezvous, from which it makes its transport.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/wait.h"
#include "net/rendezvous/rendezvous.h"

namespace tutti::testing_support {

using RankBody = std::function<void(int rank, Rendezvous& rendezvous)>;

/// Forks n ranks at once. A rank that returns exits with 0, with 1 after a failed EXPECT, with 2
/// after an exception (its message goes to stderr). Fork before starting threads in the test.
class ForkedRanks {
 public:
  ForkedRanks(int n, const RankBody& body) {
    std::vector<Fd> ours, theirs;
    for (int r = 0; r < n; ++r) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        throw_errno("socketpair", "");
      ours.emplace_back(pair[0]);
      theirs.emplace_back(pair[1]);
    }
    std::fflush(nullptr);
    for (int r = 0; r < n; ++r) {
      pid_t pid = ::fork();
      if (pid < 0) throw_errno("fork", "");
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ours.clear();
        Fd mine = std::move(theirs[r]);
        theirs.clear();
        ::_exit(run_child(r, n, std::move(mine), body));
      }
      pids_.push_back(pid);
    }
    theirs.clear();
    server_ = std::make_unique<RendezvousServer>(std::move(ours));
  }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;
  ~ForkedRanks() { wait(std::chrono::seconds(0)); }

  pid_t pid(int rank) const { return pids_[rank]; }

  /// The wait statuses (0: all went well) of all ranks; those still alive after `limit` are killed
  /// (status 9).
  std::vector<int> wait(std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    auto end = std::chrono::steady_clock::now() + limit;
    statuses_.resize(pids_.size(), -1);
    for (size_t r = 0; r < pids_.size(); ++r) {
      if (statuses_[r] != -1) continue;
      while (::waitpid(pids_[r], &statuses_[r], WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() >= end) ::kill(pids_[r], SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return statuses_;
  }

 private:
  static int run_child(int rank, int size, Fd socket, const RankBody& body) {
    int code = 0;
    try {
      SystemClock clock;
      auto rendezvous = make_process_rendezvous(rank, size, std::move(socket), clock, nullptr);
      body(rank, *rendezvous);
      code = ::testing::Test::HasFailure() ? 1 : 0;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d threw: %s\n", rank, e.what());
      code = 2;
    }
    std::fflush(nullptr);
    return code;
  }

  std::vector<pid_t> pids_;
  std::vector<int> statuses_;
  std::unique_ptr<RendezvousServer> server_;
};

/// Runs `body` on n forked ranks and returns their wait statuses; all zero means that all went
/// well.
inline std::vector<int> run_forked(int n, const RankBody& body) {
  return ForkedRanks(n, body).wait();
}

/// Runs `body` on n threads and returns the message of the exception that left each; all empty
/// means that all went well.
inline std::vector<std::string> run_threads(int n, const RankBody& body) {
  SystemClock clock;
  ThreadRendezvous rendezvous(n, clock, nullptr);
  std::vector<std::string> errors(n);
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      try {
        auto view = rendezvous.view(r);
        body(r, *view);
      } catch (const std::exception& e) {
        errors[r] = std::string("threw: ") + e.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

/// Runs `body` on n ranks of either kind and expects that all of them end well.
inline void expect_all_well(bool threads, int n, const RankBody& body) {
  if (threads) {
    EXPECT_EQ(run_threads(n, body), std::vector<std::string>(n));
  } else {
    EXPECT_EQ(run_forked(n, body), std::vector<int>(n, 0));
  }
}

}  // namespace tutti::testing_support
