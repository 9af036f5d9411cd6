// The rendezvous of threads and of processes.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/error.h"
#include "net/make.h"
#include "support/forked_ranks.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class RendezvousOf : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RendezvousOf, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "threads" : "processes"; });

TEST_P(RendezvousOf, HandsEveryonesBytesToEverybodyRoundAfterRound) {
  expect_all_well(GetParam(), 5, [](int rank, Rendezvous& rendezvous) {
    ASSERT_EQ(rendezvous.rank(), rank);
    ASSERT_EQ(rendezvous.size(), 5);
    for (int round = 0; round < 50; ++round) {
      // From nothing to more than a socket holds.
      auto text = [&](int r) {
        return std::string(static_cast<size_t>(r * round * 2000), static_cast<char>('a' + r));
      };
      const auto deck = rendezvous.exchange({.bytes = text(rank)}, Deadline::never());
      ASSERT_EQ(deck.size(), 5u);
      for (int r = 0; r < 5; ++r) EXPECT_EQ(deck[r].bytes, text(r));
    }
  });
}

TEST_P(RendezvousOf, DuplicatesDescriptorsToEverybody) {
  expect_all_well(GetParam(), 3, [](int rank, Rendezvous& rendezvous) {
    const std::string mine = "written by rank " + std::to_string(rank);
    Fd file(::memfd_create("card", MFD_CLOEXEC));
    write_all(file.get(), std::as_bytes(std::span(mine)), "card");
    auto deck = rendezvous.exchange({.fds = {file.get(), file.get()}}, Deadline::never());
    file.reset();
    for (int r = 0; r < 3; ++r) {
      ASSERT_EQ(deck[r].fds.size(), 2u);
      for (int number : deck[r].fds) {
        const Fd fd(number);
        char text[64] = {};
        EXPECT_GT(::pread(fd.get(), text, sizeof(text) - 1, 0), 0);
        EXPECT_EQ(std::string(text), "written by rank " + std::to_string(r));
      }
    }
  });
}

TEST_P(RendezvousOf, TimesOutWhenARankDoesNotCome) {
  void* page =
      ::mmap(nullptr, sizeof(Cancel), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  // for its shared memory alone: rank 1 stays until rank 0 has seen what it should
  auto* over = new (page) Cancel;
  expect_all_well(GetParam(), 2, [over](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    if (rank == 0) {
      try {
        rendezvous.exchange({}, clock.after(std::chrono::milliseconds(20)));
        ADD_FAILURE() << "nothing was thrown";
      } catch (const CommError& e) {
        EXPECT_EQ(e.failure().operation, "rendezvous");
        EXPECT_EQ(e.failure().reason, "timed out");
      }
      over->cancel("over");
    } else {
      EXPECT_EQ(clock.sleep(std::chrono::seconds(20), over), WaitResult::kCancelled);
    }
  });
  ::munmap(page, sizeof(Cancel));
}

TEST_P(RendezvousOf, TellsOfARankThatLeft) {
  expect_all_well(GetParam(), 3, [](int rank, Rendezvous& rendezvous) {
    rendezvous.exchange({}, Deadline::never());
    if (rank == 1) return;
    try {
      rendezvous.exchange({}, Deadline::never());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().peer, 1);
      EXPECT_EQ(e.failure().reason, "rank 1 left");
    }
  });
}

TEST_P(RendezvousOf, OfAnEpochEndsForThoseWhomOneHasLeftForALaterEpoch) {
  expect_all_well(GetParam(), 3, [](int rank, Rendezvous& rendezvous) {
    const Membership first = first_epoch(3, rank, 1, "");
    const Membership next = next_epoch(first, {0, 1, 2}, rank);
    if (rank != 1) {
      const auto earlier = rendezvous.among(first);
      try {
        earlier->exchange({}, Deadline::never());
        ADD_FAILURE() << "nothing was thrown";
      } catch (const CommError& e) {
        EXPECT_EQ(e.failure().peer, 1);
      }
    }
    // What was handed in for the epoch before is not dealt in this one.
    const auto later = rendezvous.among(next);
    const auto deck = later->exchange({.bytes = "next"}, Deadline::never());
    for (const Card& card : deck) EXPECT_EQ(card.bytes, "next");
  });
}

TEST_P(RendezvousOf, FindsARankThatMakesAnotherTransport) {
  expect_all_well(GetParam(), 2, [](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    try {
      make_transport({.kind = rank == 0 ? "shm" : "tcp"}, {1, 2, 3}, rendezvous, clock, nullptr,
                     Deadline::never());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("shm transport"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("tcp transport"), std::string::npos) << e.what();
    }
  });
}

}  // namespace
}  // namespace tutti
