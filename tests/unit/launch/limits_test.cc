// How many ranks the limits of a host allow, of each kind.
#include "launch/limits.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <thread>
#include <vector>

namespace tutti {
namespace {

LayoutConfig layout(int64_t ranks, Workers workers, const std::string& transport) {
  LayoutConfig l;
  l.ranks = ranks;
  l.workers = workers;
  l.transport = transport;
  l.connections = 2;
  return l;
}

/// The most ranks that so many files allow.
int64_t most(LayoutConfig l, int64_t files) {
  for (l.ranks = 1; too_many_ranks(l, {.files = files}).empty(); ++l.ranks) {
  }
  return l.ranks - 1;
}

TEST(Limits, WhatTheUserHasStartedIsTakenOff) {
  const auto look = [] {
    // Root is not held to this limit, so root becomes nobody, whose processes /proc then shows.
    (void)!::setuid(65534);
    ::prctl(PR_SET_DUMPABLE, 1);
    const rlimit limit{2000, 2000};
    ::setrlimit(RLIMIT_NPROC, &limit);
    const int64_t before = host_limits().threads;
    std::vector<std::thread> more;
    for (int i = 0; i < 20; ++i) more.emplace_back([] { ::pause(); });
    const int64_t taken = before - host_limits().threads;
    std::fprintf(stderr, "of %ld it took %ld", before, taken);
    ::_exit(before < 2000 && taken >= 15 && taken <= 25 ? 0 : 1);  // others come and go
  };
  EXPECT_EXIT(look(), testing::ExitedWithCode(0), "");
}

TEST(Limits, WithoutOnesEveryNumberOfRanksStarts) {
  for (const Workers workers : {Workers::kProcess, Workers::kThread})
    EXPECT_EQ(too_many_ranks(layout(60000, workers, "tcp"), {}), "");
}

TEST(Limits, TheLauncherHasASocketAndTheCardOfEveryRankThatSharesMemory) {
  EXPECT_EQ(most(layout(0, Workers::kProcess, "shm"), 256), (256 - 64) / 3);
  EXPECT_EQ(most(layout(0, Workers::kProcess, "nccl"), 256), (256 - 64) / 3) << "as on the host";
  EXPECT_EQ(too_many_ranks(layout(64, Workers::kProcess, "shm"), {.files = 1024}), "");
}

TEST(Limits, ARankHasItsConnectionsWithAllThatShareNoMemory) {
  EXPECT_EQ(most(layout(0, Workers::kProcess, "tcp"), 1024), 1 + (1024 - 64 - 3) / 2);
  LayoutConfig hosts = layout(0, Workers::kProcess, "shm");
  hosts.hosts = 8;
  hosts.connections = 16;
  EXPECT_LT(most(hosts, 1024), 80);
}

TEST(Limits, ThreadsShareTheFilesOfAProcess) {
  EXPECT_EQ(too_many_ranks(layout(300, Workers::kThread, "inproc"), {.files = 1024}), "");
  // Both ends of two connections for each pair.
  EXPECT_EQ(most(layout(0, Workers::kThread, "tcp"), 1024), 21);
  EXPECT_EQ(too_many_ranks(layout(64, Workers::kThread, "tcp"), {.files = 20000}), "");
}

TEST(Limits, ARefusalNamesTheLimitThatStandsInTheWay) {
  EXPECT_EQ(too_many_ranks(layout(30, Workers::kThread, "tcp"), {.files = 1024, .threads = 800}),
            "layout.ranks = 30: this host starts at most 21 ranks of workers \"thread\" over tcp: "
            "1024 open files (ulimit -Hn) allow no more");
  EXPECT_EQ(
      too_many_ranks(layout(200, Workers::kProcess, "shm"), {.files = 1024, .threads = 900}),
      "layout.ranks = 200: this host starts at most 100 ranks of workers \"process\" over shm: "
      "900 further threads allow no more");
  EXPECT_EQ(too_many_ranks(layout(1, Workers::kProcess, "shm"), {.files = 1, .threads = 0}), "");
}

}  // namespace
}  // namespace tutti
