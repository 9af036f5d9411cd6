// What every transport promises about messages, over all of them, with threads and with forked
// processes.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class Messages : public ::testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(All, Messages, ::testing::ValuesIn(all_transports()),
                         [](const auto& info) { return info.param.name; });

std::span<const std::byte> bytes_of(const int& value) {
  return std::as_bytes(std::span(&value, 1));
}
std::span<std::byte> bytes_of(int& value) { return std::as_writable_bytes(std::span(&value, 1)); }

std::vector<std::byte> pattern(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(random() >> 32);
  return bytes;
}

TEST_P(Messages, EveryPairOfRanksExchangesMessages) {
  over(GetParam(), 4, [](TestRank& me) {
    std::vector<int> in(me.size, -1);
    std::vector<Ticket> tickets;
    std::vector<int> out(me.size);
    for (int r = 0; r < me.size; ++r) {
      if (r == me.rank) continue;
      out[r] = me.rank * 100 + r;
      tickets.push_back(me.recv(r, {1, 0, 0}, bytes_of(in[r])));
      tickets.push_back(me.send(r, {1, 0, 0}, bytes_of(out[r])));
    }
    for (Ticket ticket : tickets) me.wait(ticket);
    for (int r = 0; r < me.size; ++r) {
      if (r != me.rank) EXPECT_EQ(in[r], r * 100 + me.rank);
    }
  });
}

TEST_P(Messages, AreMatchedByTagWhateverTheOrderOfPosting) {
  over(GetParam(), 2, [](TestRank& me) {
    constexpr int kCount = 20;
    std::vector<int> out(kCount), in(kCount, -1);
    std::vector<Ticket> sends, receives;
    for (int i = 0; i < kCount; ++i) {
      out[i] = 1000 * me.rank + i;
      sends.push_back(me.send(me.right(),
                              {7, static_cast<uint32_t>(i % 4), static_cast<uint64_t>(i)},
                              bytes_of(out[i])));
    }
    for (int i = kCount - 1; i >= 0; --i) {
      receives.push_back(me.recv(
          me.left(), {7, static_cast<uint32_t>(i % 4), static_cast<uint64_t>(i)}, bytes_of(in[i])));
    }
    for (Ticket ticket : receives) me.wait(ticket);
    for (Ticket ticket : sends) me.wait(ticket);
    for (int i = 0; i < kCount; ++i) EXPECT_EQ(in[i], 1000 * me.left() + i);
  });
}

TEST_P(Messages, WithEqualTagsArriveInTheOrderTheyWereSent) {
  over(GetParam(), 2, [](TestRank& me) {
    // Large and small ones in turns: over tcp they travel on different connections.
    constexpr int kCount = 12;
    std::vector<std::vector<int>> out(kCount), in(kCount);
    std::vector<Ticket> tickets;
    for (int i = 0; i < kCount; ++i) {
      const size_t size = i % 3 == 0 ? 300'000 : 10;
      out[i].assign(size, i);
      in[i].assign(size, -1);
      tickets.push_back(me.send(me.right(), {5, 5, 5}, std::as_bytes(std::span(out[i]))));
    }
    for (int i = 0; i < kCount; ++i) {
      tickets.push_back(me.recv(me.left(), {5, 5, 5}, std::as_writable_bytes(std::span(in[i]))));
    }
    for (Ticket ticket : tickets) me.wait(ticket);
    for (int i = 0; i < kCount; ++i) EXPECT_EQ(in[i], out[i]) << i;
  });
}

TEST_P(Messages, OfRandomSizesArriveIntact) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  printf("seed %llu\n", static_cast<unsigned long long>(seed));
  over(GetParam(), 3, [seed](TestRank& me) {
    std::mt19937_64 random(seed);  // the same draws on every rank
    constexpr uint32_t kCount = 12;
    std::vector<size_t> sizes(kCount);
    for (size_t& size : sizes) size = random() % (size_t{1} << (random() % 23));
    std::vector<uint32_t> order(kCount);
    for (uint32_t i = 0; i < kCount; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);

    std::vector<std::vector<std::byte>> out, in;
    std::vector<Ticket> tickets;
    for (uint32_t i = 0; i < kCount; ++i) {
      out.push_back(pattern(sizes[i], seed + 100 * me.rank + i));
      in.emplace_back(sizes[i]);
    }
    for (uint32_t i : order) {
      if (i % 2 == 0) tickets.push_back(me.recv(me.left(), {9, i, 0}, in[i]));
    }
    for (uint32_t i = 0; i < kCount; ++i) tickets.push_back(me.send(me.right(), {9, i, 0}, out[i]));
    for (uint32_t i : order) {
      if (i % 2 == 1) tickets.push_back(me.recv(me.left(), {9, i, 0}, in[i]));
    }
    uint64_t sent = 0;
    for (Ticket ticket : tickets) me.wait(ticket);
    for (uint32_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(in[i], pattern(sizes[i], seed + 100 * me.left() + i)) << "size " << sizes[i];
      sent += sizes[i];
    }
    EXPECT_EQ(me.transport.sent_bytes(me.right()), sent);
    EXPECT_EQ(me.transport.sent_bytes(me.left()), 0u);
    EXPECT_EQ(me.transport.dropped(), 0u);
  });
}

TEST_P(Messages, BothWaysAtOnceMayBeWaitedForInAnyOrder) {
  over(GetParam(), 2, [](TestRank& me) {
    const auto out = pattern(3'000'000, me.rank);
    std::vector<std::byte> in(out.size());
    Ticket send = me.send(me.right(), {1, 1, 1}, out);
    Ticket receive = me.recv(me.left(), {1, 1, 1}, in);
    me.wait(send);
    me.wait(receive);
    EXPECT_EQ(in, pattern(out.size(), me.left()));
  });
}

TEST_P(Messages, ThatNobodyExpectsYetAreKept) {
  over(GetParam(), 2, [](TestRank& me) {
    const auto out = pattern(700'000, me.rank);
    const int last = 42 + me.rank;
    std::vector<std::byte> in(out.size());
    int in_last = 0;
    Ticket first = me.send(me.right(), {1, 0, 0}, out);
    Ticket second = me.send(me.right(), {2, 0, 0}, bytes_of(last));
    // The second has arrived, so the first is there, or on its way, with nothing posted for it.
    me.wait(me.recv(me.left(), {2, 0, 0}, bytes_of(in_last)));
    me.wait(me.recv(me.left(), {1, 0, 0}, in));
    me.wait(first);
    me.wait(second);
    EXPECT_EQ(in_last, 42 + me.left());
    EXPECT_EQ(in, pattern(out.size(), me.left()));
  });
}

TEST_P(Messages, MayBePostedAndWaitedForByManyThreads) {
  over(GetParam(), 2, [](TestRank& me) {
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < 50; ++i) {
          const auto out = pattern((i * 7919) % 50'000, 1000 * t + i + me.rank);
          std::vector<std::byte> in(out.size());
          Ticket receive = me.recv(me.left(), {t, 0, i}, in);
          Ticket send = me.send(me.right(), {t, 0, i}, out);
          me.wait(receive);
          me.wait(send);
          EXPECT_EQ(in, pattern(out.size(), 1000 * t + i + me.left()));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST_P(Messages, AWaitThrowsAtItsDeadlineNamingPeerTagAndTime) {
  over(GetParam(), 2, [](TestRank& me) {
    if (me.rank != 0) return;
    int in = 0;
    Ticket ticket = me.recv(1, {17, 4, 99}, bytes_of(in));
    try {
      me.transport.wait(ticket, me.clock.after(std::chrono::milliseconds(50)));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().rank, 0);
      EXPECT_EQ(e.failure().peer, 1);
      EXPECT_EQ(e.failure().sequence, 99u);
      EXPECT_EQ(e.failure().operation, "receive of operation 17 part 4");
      EXPECT_EQ(e.failure().reason, "timed out");
      EXPECT_GE(e.failure().waited, std::chrono::milliseconds(50));
    }
  });
}

TEST_P(Messages, AMessageOfAnotherSizeThanItsReceiveIsAnErrorNamingBoth) {
  over(GetParam(), 2, [](TestRank& me) {
    std::vector<std::byte> bytes(400);
    try {
      if (me.rank == 1) {
        me.wait(me.send(0, {1, 0, 0}, std::span(bytes).first(396)));
      } else {
        me.wait(me.recv(1, {1, 0, 0}, bytes));
        ADD_FAILURE() << "nothing was thrown";
      }
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().reason, "a message of 396 bytes met a receive of 400 bytes");
    }
  });
}

TEST_P(Messages, ACancelEndsEveryWaitWithItsReason) {
  // A Cancel may be in memory that processes share.
  void* page =
      ::mmap(nullptr, sizeof(Cancel), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* cancel = new (page) Cancel;
  const TransportOptions options = options_for(GetParam(), 3);
  expect_all_well(GetParam().threads, 3, [=](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport =
        make_transport(options, kTestEpoch, rendezvous, clock, cancel, Deadline::never());
    // else one that still connects finds the cancel there
    rendezvous.exchange({}, Deadline::never());
    int in = 0;
    if (rank == 2) {
      cancel->cancel("rank 2 (pid 77) was killed by signal 9");
    } else {
      try {
        transport->wait(transport->post_recv(1 - rank, {1, 0, 0}, bytes_of(in)), Deadline::never());
        ADD_FAILURE() << "nothing was thrown";
      } catch (const CommError& e) {
        EXPECT_EQ(e.failure().reason, "rank 2 (pid 77) was killed by signal 9");
      }
    }
    // The rendezvous of threads was made without this Cancel, so it can still be used.
    rendezvous.exchange({}, Deadline::never());
  });
  ::munmap(page, sizeof(Cancel));
}

TEST_P(Messages, AfterOneWaitFailedNoOtherSpanIsTouched) {
  const TransportOptions options = options_for(GetParam(), 2);
  expect_all_well(GetParam().threads, 2, [options](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport =
        make_transport(options, kTestEpoch, rendezvous, clock, nullptr, Deadline::never());
    const std::vector<std::byte> out(200'000, std::byte{7});
    std::vector<std::byte> in(out.size());
    if (rank == 1) {
      // rank 0 has given up: these bytes must go nowhere
      rendezvous.exchange({}, Deadline::never());
      Ticket ticket = transport->post_send(0, {2, 0, 0}, out);
      try {
        transport->wait(ticket, clock.after(std::chrono::milliseconds(100)));
      } catch (const CommError&) {  // whether this send still ends is not what is asked here
      }
    } else {
      Ticket never = transport->post_recv(1, {1, 0, 0}, in);
      Ticket later = transport->post_recv(1, {2, 0, 0}, in);
      EXPECT_THROW(transport->wait(never, clock.after(Duration(0))), CommError);
      rendezvous.exchange({}, Deadline::never());
      EXPECT_THROW(transport->wait(later, clock.after(std::chrono::milliseconds(150))), CommError);
      EXPECT_EQ(in, std::vector<std::byte>(out.size()));
    }
    rendezvous.exchange({}, Deadline::never());
  });
}

TEST_P(Messages, ARankThatLeavesEndsTheWaitsForIt) {
  const TransportCase which = GetParam();
  const TransportOptions options = options_for(which, 2);
  expect_all_well(which.threads, 2, [options](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport =
        make_transport(options, kTestEpoch, rendezvous, clock, nullptr, Deadline::never());
    const int last_words = 5;
    int in = 0;
    if (rank == 1) {
      // inproc has no buffer between: its send ends when it was received.
      transport->wait(transport->post_send(0, {1, 0, 0}, bytes_of(last_words)), Deadline::never());
      transport.reset();
      rendezvous.exchange({}, Deadline::never());
      return;
    }
    transport->wait(transport->post_recv(1, {1, 0, 0}, bytes_of(in)), Deadline::never());
    EXPECT_EQ(in, 5);
    try {
      transport->wait(transport->post_recv(1, {1, 0, 1}, bytes_of(in)), Deadline::never());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().peer, 1);
    }
    rendezvous.exchange({}, Deadline::never());
  });
}

}  // namespace
}  // namespace tutti
