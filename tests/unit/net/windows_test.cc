// What transports with windows promise about them and about flags, with threads and with forked
// processes.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

std::vector<TransportCase> with_windows() {
  std::vector<TransportCase> cases;
  for (const TransportCase& which : all_transports()) {
    if (which.kind != "tcp") cases.push_back(which);
  }
  return cases;
}

class Windows : public ::testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(All, Windows, ::testing::ValuesIn(with_windows()),
                         [](const auto& info) { return info.param.name; });

constexpr size_t kBytes = 64 << 10;

TEST_P(Windows, AreZeroPageAlignedAndReadByTheRanksOfTheHostOnceTheFlagIsRaised) {
  over(
      GetParam(), 4,
      [two_hosts = GetParam().two_hosts](TestRank& me) {
        auto window = me.transport.window();
        ASSERT_EQ(window.size(), kBytes);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(window.data()) % 4096, 0u);
        EXPECT_TRUE(std::all_of(window.begin(), window.end(),
                                [](std::byte b) { return b == std::byte{0}; }));
        for (uint64_t round = 1; round <= 20; ++round) {
          std::memset(window.data(), static_cast<int>(10 * me.rank + round), window.size());
          me.transport.raise(3, round);
          for (int r = 0; r < me.size; ++r) {
            const auto theirs = me.transport.window_of(r);
            if (two_hosts && r / 2 != me.rank / 2) {
              EXPECT_TRUE(theirs.empty());
              continue;
            }
            me.transport.await(r, 3, round, me.soon(), "window");
            EXPECT_TRUE(std::all_of(theirs.begin(), theirs.end(), [&](std::byte b) {
              return b == static_cast<std::byte>(10 * r + round);
            }));
          }
          me.transport.raise(4, round);  // have read
          for (int r = 0; r < me.size; ++r) {
            if (!me.transport.window_of(r).empty())
              me.transport.await(r, 4, round, me.soon(), "readers");
          }
        }
      },
      kBytes);
}

TEST_P(Windows, AnAwaitThrowsAtItsDeadlineNamingPeerAndWhat) {
  over(
      GetParam(), 2,
      [two_hosts = GetParam().two_hosts](TestRank& me) {
        const int peer = two_hosts ? me.rank : 1 - me.rank;
        me.transport.raise(0, 4);
        try {
          me.transport.await(peer, 0, 5, me.clock.after(std::chrono::milliseconds(30)),
                             "reduce parcel 3");
          ADD_FAILURE() << "nothing was thrown";
        } catch (const CommError& e) {
          EXPECT_EQ(e.failure().peer, peer);
          EXPECT_EQ(e.failure().operation, "reduce parcel 3");
          EXPECT_EQ(e.failure().reason, "timed out");
          EXPECT_GE(e.failure().waited, std::chrono::milliseconds(30));
        }
      },
      4096);
}

TEST_P(Windows, AnAwaitMovesLargeMessagesOnMeanwhile) {
  over(
      GetParam(), 4,
      [](TestRank& me) {
        std::vector<std::byte> bytes(5'000'000, std::byte{9});
        if (me.rank % 2 == 0) {
          Ticket ticket = me.send(me.rank + 1, {1, 0, 0}, bytes);
          me.transport.await(me.rank + 1, 0, 1, me.soon(), "my neighbour to have received");
          me.wait(ticket);
        } else {
          std::vector<std::byte> in(bytes.size());
          me.wait(me.recv(me.rank - 1, {1, 0, 0}, in));
          EXPECT_EQ(in, bytes);
          me.transport.raise(0, 1);
        }
      },
      4096);
}

TEST(ShmWindow, OfAPeerCannotBeWritten) {
  // The write must kill: nothing between the ranks but the kernel's refusal.
  const auto statuses =
      run_forked(2, with_transport({.kind = "shm", .window_bytes = 4096}, [](TestRank& me) {
                   me.barrier(1);
                   if (me.rank != 0) return;
                   const auto theirs = me.transport.window_of(1);
                   void* page = const_cast<std::byte*>(theirs.data());
                   EXPECT_NE(::mprotect(page, 4096, PROT_READ | PROT_WRITE), 0)
                       << "the seal lets nobody make it writable";
                   const pid_t child = ::fork();
                   if (child == 0) {
                     ::signal(SIGSEGV, SIG_DFL);
                     *static_cast<volatile char*>(page) = 1;
                     ::_exit(0);
                   }
                   int status = 0;
                   ::waitpid(child, &status, 0);
                   EXPECT_TRUE(WIFSIGNALED(status));
                   EXPECT_EQ(WTERMSIG(status), SIGSEGV);
                 }));
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(ShmWindow, OutlivesItsTransportAndIsShownByTheNext) {
  for (const char* kind : {"shm", "inproc"}) {
    const RankBody body = [kind](int rank, Rendezvous& rendezvous) {
      SystemClock clock;
      const auto connect = [&](const TransportOptions& options, uint32_t epoch) {
        return make_transport(options, {1, epoch, 7}, rendezvous, clock, nullptr,
                              clock.after(std::chrono::seconds(20)));
      };
      TransportOptions options{.kind = kind, .window_bytes = 8192};
      auto first = connect(options, 1);
      options.window = first->held_window();
      options.window->bytes()[100] = static_cast<std::byte>(rank + 1);
      rendezvous.exchange({}, Deadline::never());
      first.reset();
      EXPECT_EQ(options.window->bytes()[100], static_cast<std::byte>(rank + 1))
          << "the transport is gone";
      auto second = connect(options, 2);
      EXPECT_EQ(second->window().data(), options.window->bytes().data());
      EXPECT_EQ(second->window_of(1 - rank)[100], static_cast<std::byte>(2 - rank));
      rendezvous.exchange({}, Deadline::never());
    };
    if (std::string(kind) == "shm") {
      EXPECT_EQ(run_forked(2, body), (std::vector<int>{0, 0}));
    } else {
      EXPECT_EQ(run_threads(2, body), std::vector<std::string>(2));
    }
  }
}

TEST(ShmWindow, OfAnotherSizeOrKindIsRefused) {
  const auto ended = run_threads(1, [](int, Rendezvous& rendezvous) {
    SystemClock clock;
    const auto connect = [&](const TransportOptions& options) {
      return make_transport(options, kTestEpoch, rendezvous, clock, nullptr, Deadline::never());
    };
    TransportOptions options{.kind = "inproc", .window_bytes = 8192};
    options.window = connect(options)->held_window();
    EXPECT_NO_THROW(connect(options));
    TransportOptions other = options;
    other.window_bytes = 4096;
    EXPECT_THROW(connect(other), Error);
    other = options, other.kind = "shm";
    EXPECT_THROW(connect(other), Error);
  });
  EXPECT_EQ(ended, std::vector<std::string>(1));
}

TEST(ShmWindow, MayDifferInSizeFromRankToRank) {
  const auto statuses = run_forked(3, [](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    TransportOptions options{.kind = "shm", .window_bytes = static_cast<size_t>(rank) * 10'000};
    auto transport =
        make_transport(options, kTestEpoch, rendezvous, clock, nullptr, Deadline::never());
    for (int r = 0; r < 3; ++r)
      EXPECT_EQ(transport->window_of(r).size(), static_cast<size_t>(r) * 10'000);
    rendezvous.exchange({}, Deadline::never());
  });
  EXPECT_EQ(statuses, std::vector<int>(3, 0));
}

}  // namespace
}  // namespace tutti
