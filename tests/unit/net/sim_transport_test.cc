#include "support/sim_transport.h"

#include <gtest/gtest.h>

namespace tutti::test {

namespace {

using namespace std::chrono_literals;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void send(Transport& transport, int peer, Tag tag, const std::string& text, Deadline deadline) {
  transport.wait(transport.post_send(peer, tag, bytes_of(text)), deadline);
}

std::string receive(Transport& transport, int peer, Tag tag, size_t n, Deadline deadline) {
  std::string text(n, ' ');
  transport.wait(transport.post_recv(peer, tag, std::as_writable_bytes(std::span(text.data(), n))),
                 deadline);
  return text;
}

/// Two ranks on a network, each with a body.
struct TwoRanks {
  explicit TwoRanks(uint64_t seed, std::vector<Fault> faults = {}, size_t window_bytes = 0)
      : scheduler(seed),
        network(
            scheduler,
            {.ranks = 2, .seed = seed, .faults = std::move(faults), .window_bytes = window_bytes},
            &cancel) {
    for (int rank = 0; rank < 2; ++rank) transports.push_back(network.transport(rank));
  }
  void run(std::function<void(Transport&)> zero, std::function<void(Transport&)> one) {
    scheduler.spawn("rank 0", [&] { zero(*transports[0]); });
    scheduler.spawn("rank 1", [&] { one(*transports[1]); });
    scheduler.run();
  }
  /// What comes of a receive of one byte by rank 1, and when.
  std::pair<std::string, Duration> try_receive(Duration timeout) {
    std::string result;
    run([&](Transport& t) { t.wait(t.post_send(1, {}, bytes_of("x")), Deadline::never()); },
        [&](Transport& t) {
          try {
            result = receive(t, 0, {}, 1, scheduler.after(timeout));
          } catch (const CommError& error) {
            result = error.failure().reason;
          }
        });
    return {result, scheduler.now().time_since_epoch()};
  }

  Cancel cancel;
  TestScheduler scheduler;
  SimNetwork network;
  std::vector<std::unique_ptr<Transport>> transports;
};

}  // namespace

TEST(SimTransport, MatchesByTagAndKeepsMessagesOfEqualTagInOrder) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    TwoRanks ranks(seed);
    const Deadline d = ranks.scheduler.after(1s);
    ranks.run(
        [&](Transport& t) {
          const std::string a = "a", b = "b", c = "c";
          std::vector<Ticket> sends{t.post_send(1, {1}, bytes_of(a)),
                                    t.post_send(1, {2}, bytes_of(c)),
                                    t.post_send(1, {1}, bytes_of(b))};
          for (Ticket ticket : sends) t.wait(ticket, d);
          EXPECT_EQ(t.sent_bytes(1), 3u);
        },
        [&](Transport& t) {
          EXPECT_EQ(receive(t, 0, {2}, 1, d), "c");
          EXPECT_EQ(receive(t, 0, {1}, 1, d), "a");
          EXPECT_EQ(receive(t, 0, {1}, 1, d), "b");
        });
    EXPECT_EQ(ranks.scheduler.missed_notifies(), 0u) << "seed " << seed;
  }
}

TEST(SimTransport, ADroppedMessageTimesOutAtTheDeadline) {
  TwoRanks ranks(1, {{.kind = Fault::Kind::kDrop}});
  EXPECT_EQ(ranks.try_receive(5s), (std::pair<std::string, Duration>("timed out", 5s)));
}

TEST(SimTransport, ADelayedMessageArrivesLate) {
  TwoRanks ranks(1, {{.kind = Fault::Kind::kDelay, .delay = 2s}});
  const auto [result, at] = ranks.try_receive(5s);
  EXPECT_EQ(result, "x");
  EXPECT_GE(at, 2s);
  EXPECT_LT(at, 2s + 1ms);
}

TEST(SimTransport, CopiesAndMessagesOfAnotherEpochAreTurnedAway) {
  TwoRanks ranks(1, {{.kind = Fault::Kind::kDuplicate}, {.kind = Fault::Kind::kForeignEpoch}});
  const Deadline d = ranks.scheduler.after(1s);
  ranks.run(
      [&](Transport& t) {
        send(t, 1, {}, "x", d);
        send(t, 1, {}, "y", d);
      },
      [&](Transport& t) {
        EXPECT_EQ(receive(t, 0, {}, 1, d), "x");
        EXPECT_EQ(receive(t, 0, {}, 1, d), "y");
        EXPECT_EQ(t.dropped(), 1u);
      });
  EXPECT_EQ(ranks.network.duplicates(), 1u);
}

TEST(SimTransport, ACutFailsTheWaitAtThatMomentAndNamesThePeer) {
  TwoRanks ranks(1);
  ranks.network.cut(0, Time(3s));
  ranks.run([&](Transport&) { ranks.scheduler.sleep(10s, nullptr); },
            [&](Transport& t) {
              try {
                receive(t, 0, {7, 1, 4}, 1, ranks.scheduler.after(60s));
                ADD_FAILURE() << "a cut rank was received from";
              } catch (const CommError& error) {
                EXPECT_EQ(error.failure().rank, 1);
                EXPECT_EQ(error.failure().peer, 0);
                EXPECT_EQ(error.failure().sequence, 4u);
                EXPECT_EQ(error.failure().waited, 3s);
                EXPECT_EQ(error.failure().reason, "connection lost");
              }
              EXPECT_THROW(receive(t, 0, {7, 1, 4}, 1, ranks.scheduler.after(60s)), CommError);
              EXPECT_EQ(ranks.scheduler.now(), Time(3s));
            });
}

TEST(SimTransport, ACancelEndsAWaitWithItsReason) {
  TwoRanks ranks(2);
  ranks.run([&](Transport&) { ranks.cancel.cancel("rank 5 was killed"); },
            [&](Transport& t) {
              try {
                receive(t, 0, {}, 1, Deadline::never());
                ADD_FAILURE() << "nothing was sent";
              } catch (const CommError& error) {
                EXPECT_NE(error.failure().reason.find("rank 5 was killed"), std::string::npos);
              }
            });
}

TEST(SimTransport, APeerThatLeavesEndsWaitsForWhatItNeverSent) {
  TwoRanks ranks(3);
  const std::string sent = "x";
  ranks.run(
      [&](Transport& t) {
        t.post_send(1, {1}, bytes_of(sent));
        ranks.transports[0].reset();
      },
      [&](Transport& t) {
        EXPECT_EQ(receive(t, 0, {1}, 1, Deadline::never()), "x");
        EXPECT_THROW(receive(t, 0, {2}, 1, Deadline::never()), CommError);
      });
}

TEST(SimTransport, AReceiveOfAnotherSizeFails) {
  TwoRanks ranks(1);
  ranks.run(
      [&](Transport& t) { send(t, 1, {}, "abc", Deadline::never()); },
      [&](Transport& t) { EXPECT_THROW(receive(t, 0, {}, 2, Deadline::never()), CommError); });
}

TEST(SimTransport, WindowsAreReadableByPeersOnceTheFlagIsUp) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    TwoRanks ranks(seed, {}, 100);
    ranks.run(
        [&](Transport& t) {
          t.window()[99] = std::byte{42};
          t.raise(3, 1);
        },
        [&](Transport& t) {
          t.await(0, 3, 1, ranks.scheduler.after(1s), "flag");
          EXPECT_EQ(t.window_of(0)[99], std::byte{42});
          EXPECT_THROW(t.await(0, 3, 2, ranks.scheduler.after(1s), "flag"), CommError);
        });
  }
}

TEST(SimTransportDeathTest, ASendWhoseBytesChangeTooEarlyAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        TwoRanks ranks(1);
        ranks.run(
            [&](Transport& t) {
              std::string text = "abc";
              const Ticket ticket = t.post_send(1, {}, bytes_of(text));
              text = "xyz";
              t.wait(ticket, Deadline::never());
            },
            [&](Transport& t) { receive(t, 0, {}, 3, Deadline::never()); });
      },
      "were changed before it was done");
}

}  // namespace tutti::test
