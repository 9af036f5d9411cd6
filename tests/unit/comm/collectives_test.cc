// The collectives among threads: against sums written out, for one to five ranks.
#include "comm/collectives.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/fold.h"
#include "net/make.h"
#include "support/forked_ranks.h"
#include "support/lane_values.h"

namespace tutti {
namespace {

using namespace testing_support;

void run_channels(int ranks, const std::function<void(Channel&)>& body,
                  Duration timeout = std::chrono::seconds(20)) {
  expect_all_well(true, ranks, [&](int, Rendezvous& rendezvous) {
    SystemClock clock;
    const Deadline end = clock.after(std::chrono::seconds(20));
    auto transport =
        make_transport({.kind = "inproc"}, Epoch{1, 1, 1}, rendezvous, clock, nullptr, end);
    Channel channel(*transport, clock, {16, 31}, timeout);
    body(channel);
    rendezvous.exchange({}, end);
  });
}

std::vector<float> values_of(int rank, int64_t n) {
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = lane_value(9, 0, rank, i);
  return x;
}

class Collectives : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Range(1, 6));

TEST_P(Collectives, BroadcastReachesEveryRankFromEveryRoot) {
  run_channels(GetParam(), [](Channel& channel) {
    for (int root = 0; root < channel.size(); ++root) {
      std::vector<float> x = values_of(channel.rank(), 1000);
      channel.broadcast(std::as_writable_bytes(std::span(x)), root);
      EXPECT_EQ(x, values_of(root, 1000)) << root;
    }
  });
}

TEST_P(Collectives, AllGatherOrdersByRank) {
  run_channels(GetParam(), [](Channel& channel) {
    for (int round = 0; round < 20; ++round) {
      const int64_t mine = channel.rank() * 100 + round;
      std::vector<int64_t> all(channel.size());
      channel.all_gather(std::as_bytes(std::span(&mine, 1)),
                         std::as_writable_bytes(std::span(all)));
      for (int r = 0; r < channel.size(); ++r) EXPECT_EQ(all[r], r * 100 + round);
    }
  });
}

TEST_P(Collectives, AllToAllHandsEveryRankWhatEachOtherHasForItOfAnySize) {
  run_channels(GetParam(), [](Channel& channel) {
    const auto size = [](int from, int to, int round) {
      return static_cast<int64_t>(from + 2 * to + round) % 5 * 300;
    };
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<float>> out(channel.size()), in(channel.size());
      std::vector<std::span<const std::byte>> to(channel.size());
      std::vector<std::span<std::byte>> from(channel.size());
      for (int r = 0; r < channel.size(); ++r) {
        out[r] = values_of(channel.rank() * 10 + r, size(channel.rank(), r, round));
        in[r].resize(size(r, channel.rank(), round));
        to[r] = std::as_bytes(std::span(out[r]));
        from[r] = std::as_writable_bytes(std::span(in[r]));
      }
      channel.all_to_all(to, from);
      for (int r = 0; r < channel.size(); ++r) {
        if (r != channel.rank())
          EXPECT_EQ(in[r], values_of(r * 10 + channel.rank(), size(r, channel.rank(), round)));
      }
    }
  });
}

TEST_P(Collectives, AllReduceIsTheTreeOverRanksWhateverTheSize) {
  run_channels(GetParam(), [](Channel& channel) {
    for (int64_t n : {0, 1, 5, 4096, 4097, 50'000}) {
      std::vector<float> x = values_of(channel.rank(), n);
      channel.all_reduce(x);
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) wrong += x[i] != tree_value(9, 0, 0, channel.size(), i);
      EXPECT_EQ(wrong, 0) << n;
    }
  });
}

TEST_P(Collectives, ReduceScatterLeavesEachRankItsSlice) {
  run_channels(GetParam(), [](Channel& channel) {
    std::vector<Range> slices;  // of all sizes, the first one empty
    for (int64_t r = 0; r < channel.size(); ++r)
      slices.push_back({r * r * 50, (r + 1) * (r + 1) * 50});
    slices[0].end = slices[0].begin;
    std::vector<float> x = values_of(channel.rank(), 2000);
    channel.reduce_scatter(x, slices);
    const Range mine = slices[channel.rank()];
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      ASSERT_EQ(x[i], tree_value(9, 0, 0, channel.size(), i)) << i;
    }
    channel.all_gather_slices(x, slices);
    for (int64_t i = slices.back().begin; i < slices.back().end; ++i) {
      ASSERT_EQ(x[i], tree_value(9, 0, 0, channel.size(), i)) << i;
    }
  });
}

TEST_P(Collectives, RingSumsAllRanksWithinRounding) {
  run_channels(GetParam(), [](Channel& channel) {
    for (int64_t n : {1, 100, 5000}) {
      std::vector<float> x = values_of(channel.rank(), n);
      channel.ring_all_reduce(x);
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0, magnitude = 0;
        for (int r = 0; r < channel.size(); ++r) {
          sum += lane_value(9, 0, r, i);
          magnitude += std::fabs(lane_value(9, 0, r, i));
        }
        ASSERT_NEAR(x[i], sum, channel.size() * magnitude * 0x1p-24)
            << "half an ulp of the sum for each addition";
      }
    }
  });
}

TEST_P(Collectives, MessagesOfTwoRanksArriveInOrderBetweenOtherCollectives) {
  run_channels(GetParam(), [](Channel& channel) {
    for (int round = 0; round < 30; ++round) {
      if (channel.size() > 1 && channel.rank() == 0)
        channel.send(1, std::as_bytes(std::span(&round, 1)));
      if (channel.rank() == 1) {
        int got = -1;
        channel.recv(0, std::as_writable_bytes(std::span(&got, 1)));
        EXPECT_EQ(got, round);
      }
      channel.barrier();
    }
  });
}

TEST(Collectives, BarrierHoldsUntilAllHaveCome) {
  std::atomic<int> arrived{0};
  run_channels(4, [&](Channel& channel) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      channel.barrier();
      EXPECT_GE(arrived.load(), 4 * round);
      channel.barrier();
    }
  });
}

TEST(Collectives, NameTheRankThatDoesNotCome) {
  run_channels(
      4,
      [](Channel& channel) {
        if (channel.rank() == 2) return;
        try {
          channel.barrier();
          ADD_FAILURE() << "passed the barrier without rank 2";
        } catch (const CommError& e) {
          EXPECT_EQ(e.failure().operation, "barrier");
          EXPECT_EQ(e.failure().peer, 2) << e.what();
        }
      },
      std::chrono::milliseconds(60));
}

}  // namespace
}  // namespace tutti
