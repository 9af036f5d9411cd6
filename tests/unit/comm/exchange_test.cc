// Exchanges between columns: every number of ranks ends with what one rank has.
#include "comm/exchange.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "base/error.h"
#include "support/lane_values.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;

std::vector<int> all_of(const TestRank& me) {
  std::vector<int> ranks;
  // tensor order need not be the transport's
  for (int r = me.size; r > 0; --r) ranks.push_back(r - 1);
  return ranks;
}

int member_of(const TestRank& me) { return me.size - 1 - me.rank; }

void expect_gathered(TestRank& me, int columns) {
  constexpr int64_t kBytes = 77;
  ColumnExchange exchange((1U << 22) + columns, all_of(me), columns, me.transport);
  const Range mine = lanes_of(member_of(me), me.size, columns);
  std::vector<std::byte> whole(columns * kBytes), parts(mine.size() * kBytes);
  for (uint64_t step = 0; step < 4; ++step) {
    const auto value = [&](int64_t column) {
      return static_cast<std::byte>(1 + column + 16 * step);
    };
    std::fill(whole.begin(), whole.end(), std::byte{0});
    std::vector<const std::byte*> from;
    for (int64_t c = 0; c < mine.size(); ++c) {
      std::byte* at =
          step % 2 == 0 ? parts.data() + c * kBytes : whole.data() + (mine.begin + c) * kBytes;
      std::fill_n(at, kBytes, value(mine.begin + c));
      from.push_back(at);
    }
    exchange.gather(from, kBytes, whole.data(), step, me.soon());
    int64_t wrong = 0;
    for (int64_t i = 0; i < columns * kBytes; ++i) wrong += whole[i] != value(i / kBytes);
    EXPECT_EQ(wrong, 0) << columns << " columns on " << me.size << " ranks";
  }
}

void expect_scattered(TestRank& me, int columns, uint64_t seed) {
  const int64_t part = 131, floats = columns * part;
  ColumnExchange exchange((1U << 22) + 100 + columns, all_of(me), columns, me.transport);
  const Range mine = lanes_of(member_of(me), me.size, columns);
  std::vector<std::vector<float>> sums(mine.size(), std::vector<float>(floats)), parts(mine.size());
  std::vector<std::byte> scratch(ColumnExchange::scratch_bytes(columns, me.size, floats));
  for (uint64_t step = 0; step < 3; ++step) {
    std::vector<float*> in, out;
    for (int64_t c = 0; c < mine.size(); ++c) {
      for (int64_t i = 0; i < floats; ++i) sums[c][i] = lane_value(seed, step, mine.begin + c, i);
      parts[c].assign(part, 0);
      in.push_back(sums[c].data());
      out.push_back(parts[c].data());
    }
    exchange.scatter(in, floats, out, step, me.soon(), scratch);
    int64_t wrong = 0;
    for (int64_t c = 0; c < mine.size(); ++c) {
      for (int64_t k = 0; k < part; ++k) {
        const float want = tree_value(seed, step, 0, columns, (mine.begin + c) * part + k);
        wrong += std::bit_cast<uint32_t>(parts[c][k]) != std::bit_cast<uint32_t>(want);
      }
    }
    EXPECT_EQ(wrong, 0) << columns << " columns on " << me.size << " ranks";
  }
}

class Exchanges : public testing::TestWithParam<TransportCase> {};
INSTANTIATE_TEST_SUITE_P(Transports, Exchanges, testing::ValuesIn(all_transports()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Exchanges, GatherAllColumnsOnEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    over(GetParam(), ranks, [&](TestRank& me) {
      for (int columns = ranks; columns <= 8; ++columns) expect_gathered(me, columns);
    });
  }
}

TEST_P(Exchanges, ScatterTheColumnsTreeOnEveryNumberOfRanks) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    over(GetParam(), ranks, [&](TestRank& me) {
      for (int columns = ranks; columns <= 8; ++columns) expect_scattered(me, columns, seed);
    });
  }
}

TEST_P(Exchanges, NameTheExchangeAndTheRankThatIsMissing) {
  over(GetParam(), 3, [&](TestRank& me) {
    if (me.rank == 2) return;
    ColumnExchange exchange(4711, {0, 1, 2}, 4, me.transport);
    const int64_t mine = lanes_of(me.rank, 3, 4).size();
    std::vector<float> sum(8), part(2);
    const std::vector<float*> sums(mine, sum.data()), parts(mine, part.data());
    std::vector<std::byte> scratch(ColumnExchange::scratch_bytes(4, 3, 8));
    try {
      exchange.scatter(sums, 8, parts, 6, me.clock.after(std::chrono::milliseconds(200)), scratch);
      ADD_FAILURE() << "scattered without rank 2";
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().operation, "scatter of exchange 4711");
      EXPECT_EQ(e.failure().peer, 2) << e.what();
      EXPECT_EQ(e.failure().sequence, 6U);
    }
  });
}

}  // namespace
}  // namespace tutti
