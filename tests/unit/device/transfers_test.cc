// Sums and copies on devices, among threads with devices on the host: the bits of the tree in every
// layout, without taking memory or waiting in a step, in few messages.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "comm/pulls.h"
#include "device/device_transfers.h"
#include "net/make.h"
#include "support/device_parcel.h"
#include "support/forked_ranks.h"
#include "support/host_device.h"
#include "support/host_group.h"
#include "support/host_state_kernels.h"

namespace tutti {
namespace {

using namespace testing_support;

struct DeviceRank {
  HostDevice& device;
  HostGroup* group;  // null: alone
  Transport& transport;
  int rank() const { return transport.rank(); }
  std::unique_ptr<DeviceParcel> parcel(const SumCase& c) const {
    return std::make_unique<DeviceParcel>(c, device, group, host_state_kernels());
  }
};

void on_device_ranks(int ranks, const std::function<void(DeviceRank&)>& body) {
  expect_all_well(true, ranks, [&](int, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport = make_transport({.kind = "inproc"}, Epoch{1, 1, 1}, rendezvous, clock, nullptr,
                                    clock.after(std::chrono::seconds(20)));
    HostDevice device;
    HostGroup group(*transport, clock);
    DeviceRank rank{device, ranks == 1 ? nullptr : &group, *transport};
    body(rank);
    rendezvous.exchange({}, clock.after(std::chrono::seconds(20)));
  });
}

struct CaseKind {
  bool root = false, shared = false, ordered = true;
};

/// A parcel of several units.
SumCase case_of(int ranks, int lanes, CaseKind kind) {
  SumCase c =
      plain_case(ranks, lanes, {150 + 37 * lanes + 11 * ranks, 1, 64}, std::random_device{}());
  if (kind.shared) c.units[0].further = {{{40, 140}, false}, {{139, 150}, false}};
  for (auto& unit : c.units)
    if (kind.root) unit.slices = root_slices(unit.size, ranks);
  c.ordered = kind.ordered;
  return c;
}

class DeviceSumOf : public testing::TestWithParam<int> {};

TEST_P(DeviceSumOf, HasTheBitsOfTheTreeInEveryLayout) {
  const int ranks = GetParam();
  for (int lanes = ranks; lanes <= 8; ++lanes) {
    // Parcels that are under way together.
    std::vector<SumCase> cases;
    for (bool root : {false, true})
      for (bool shared : {false, true}) cases.push_back(case_of(ranks, lanes, {root, shared}));
    on_device_ranks(ranks, [&](DeviceRank& me) {
      std::vector<std::unique_ptr<DeviceParcel>> parcels;
      for (const SumCase& c : cases) parcels.push_back(me.parcel(c));
      const Stream stream = me.device.make_stream();
      for (uint64_t step = 0; step < 2; ++step) {
        for (auto& parcel : parcels) parcel->fill(stream, step);
        for (auto& parcel : parcels) parcel->sum(stream);
        for (size_t p = 0; p < parcels.size(); ++p)
          EXPECT_EQ(parcels[p]->wrong_slices(stream, step).bits, 0)
              << "own slices: " << cases[p].text() << " rank " << me.rank() << " step " << step;
        for (auto& parcel : parcels) parcel->gather(stream);
        for (size_t p = 0; p < parcels.size(); ++p)
          EXPECT_EQ(parcels[p]->wrong(stream, step).bits, 0)
              << cases[p].text() << " rank " << me.rank() << " step " << step;
      }
    });
  }
}

TEST_P(DeviceSumOf, ManyRoundsHasTheBitsOfTheTree) {
  const int ranks = GetParam();
  for (int lanes = ranks; lanes <= 7; ++lanes) {
    for (bool owner : {false, true}) {
      SumCase c = case_of(ranks, lanes, {.shared = true});
      c.options.batch.micro_batches = 3;
      c.options.micro = true;
      c.options.owner = owner;
      c.units[0].further[0].away = true;  // a user on ranks that own nothing
      on_device_ranks(c.ranks(), [&](DeviceRank& me) {
        const auto parcel = me.parcel(c);
        EXPECT_GT(parcel->rounds(), 1);
        for (uint64_t step = 0; step < 2; ++step) {
          for (int round = 0; round < parcel->rounds(); ++round) {
            parcel->fill({}, step, round);
            parcel->sum({}, round);
          }
          EXPECT_EQ(parcel->wrong_slices({}, step).bits, 0)
              << c.text() << " rank " << me.rank() << " step " << step;
        }
      });
    }
  }
}

TEST_P(DeviceSumOf, WithoutAnOrderIsCloseToTheTree) {
  const int ranks = GetParam();
  for (int lanes = ranks; lanes <= 8; ++lanes) {
    const SumCase c = case_of(ranks, lanes, {.shared = true, .ordered = false});
    on_device_ranks(ranks, [&](DeviceRank& me) {
      const auto parcel = me.parcel(c);
      parcel->fill({}, 5);
      parcel->sum({});
      const DeviceParcel::Wrong wrong = parcel->wrong({}, 5);
      EXPECT_EQ(wrong.far, 0) << c.text() << " rank " << me.rank();
      // Also shows that the numbers tell one order of additions from another: rank order is not the
      // tree's.
      if (ranks == 4 && lanes == 4) EXPECT_GT(wrong.bits, 0) << c.text();
      EXPECT_EQ(parcel->scratch_bytes(), 0);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceSumOf, testing::Range(1, 5));

TEST(DeviceSum, HasTheBitsOfTheCpusSum) {
  SumCase c = case_of(3, 7, {.shared = true});
  c.units[1] = {20'000, {{0, 9000}, {9000, 9100}, {9100, 20'000}}, {}};
  on_device_ranks(3, [&](DeviceRank& me) {
    const auto parcel = me.parcel(c);
    parcel->fill({}, 0);
    std::vector<std::byte> arena(parcel->arena(), parcel->arena() + parcel->arena_bytes());
    const SumTransfer transfer = c.transfer();
    std::vector<std::vector<float*>> levels;
    for (size_t u = 0; u < c.units.size(); ++u)
      levels.push_back({reinterpret_cast<float*>(arena.data() + c.offset(me.rank(), 0, u, 0)) +
                        c.units[u].slices[me.rank()].begin});
    std::vector<std::byte> scratch(SumPull::scratch_bytes(transfer, me.rank(), false));
    SystemClock clock;
    make_sum_pull(transfer, {1, 0, "sum"}, me.transport, arena, levels, scratch)
        ->run(0, clock.after(std::chrono::seconds(20)));
    parcel->sum({});
    for (size_t u = 0; u < c.units.size(); ++u) {
      const Range slice = c.units[u].slices[me.rank()];
      const auto* made =
          reinterpret_cast<const float*>(parcel->arena() + c.offset(me.rank(), 0, u, 0)) +
          slice.begin;
      EXPECT_EQ(std::memcmp(made, levels[u][0], slice.size() * sizeof(float)), 0)
          << c.text() << " unit " << u << " rank " << me.rank();
    }
  });
}

TEST(DeviceSum, TakesNothingAndNeverWaitsForTheDevice) {
  for (bool root : {false, true}) {
    const SumCase c = case_of(3, 5, {.root = root, .shared = true});
    on_device_ranks(3, [&](DeviceRank& me) {
      const auto parcel = me.parcel(c);
      parcel->fill({}, 0);
      const int64_t takes = me.device.takes(), synchronisations = me.device.synchronisations();
      for (int step = 0; step < 3; ++step) {
        parcel->sum({});
        parcel->gather({});
      }
      EXPECT_EQ(me.device.takes(), takes);
      EXPECT_EQ(me.device.synchronisations(), synchronisations);
    });
  }
}

TEST(DeviceSum, WantsScratchForWhatArrivesAlone) {
  const auto bytes = [](int64_t floats) { return align_up(floats, kAlign) * 4; };
  SumCase c = plain_case(3, 3, {1000, 90}, 1);
  c.units[0].slices = {{0, 500}, {500, 1000}, {}};
  c.units[1].slices = {{}, {0, 90}, {}};
  c.units[1].further = {{{80, 90}, false}};
  EXPECT_EQ(DeviceSum::scratch_bytes(c.transfer(), 0), 2 * bytes(500));
  EXPECT_EQ(DeviceSum::scratch_bytes(c.transfer(), 1),
            2 * bytes(500) + 2 * bytes(90) + 2 * bytes(10));
  EXPECT_EQ(DeviceSum::scratch_bytes(c.transfer(), 2), 0);
}

TEST(DeviceSum, SendsOneMessageForEveryTermOfAUnit) {
  SumCase c = case_of(2, 4, {.shared = true});
  for (auto& unit : c.units) unit.slices = {{0, unit.size / 2}, {unit.size / 2, unit.size}};
  c.units[0].further = {{{10, 20}, false}};  // of rank 0's slice
  on_device_ranks(2, [&](DeviceRank& me) {
    const auto parcel = me.parcel(c);
    parcel->fill({}, 0);
    parcel->sum({});
    EXPECT_EQ(me.group->exchanges(), 1);
    // Two lanes of a rank are one term. Unit 1 is a single float, which rank 1 owns. three units
    // from rank 0; two and a further user from rank 1
    EXPECT_EQ(me.group->messages(), 3);
    const int64_t before = me.group->messages();
    parcel->gather({});
    EXPECT_EQ(me.group->exchanges(), 2);
    EXPECT_EQ(me.group->messages() - before, me.rank() == 0 ? 2 : 3);
  });
}

TEST(DeviceSum, OfAMissingRankIsACommError) {
  SumCase c = case_of(3, 3, {});
  c.units[0].slices = {{0, 50}, {50, 100}, {100, c.units[0].size}};
  expect_all_well(true, 3, [&](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport = make_transport({.kind = "inproc"}, Epoch{1, 1, 1}, rendezvous, clock, nullptr,
                                    clock.after(std::chrono::seconds(20)));
    HostDevice device;
    HostGroup group(*transport, clock, std::chrono::milliseconds(200));
    DeviceParcel parcel(c, device, &group, host_state_kernels());
    if (rank != 2) EXPECT_THROW(parcel.sum({}), CommError);
    rendezvous.exchange({}, clock.after(std::chrono::seconds(20)));
  });
}

/// Rank r holds byte r in its own place; all but the last rank want all of them, in reverse order
/// and in two buffers.
TEST(DeviceCopies, BringWhatEachHolds) {
  constexpr int64_t kBytes = 301;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    CopyTransfer transfer;
    for (int to = 0; to < ranks; ++to) {
      transfer.ranks.push_back(to);
      for (int from = 0; from < ranks && (to + 1 < ranks || ranks == 1); ++from)
        transfer.copies.push_back(
            {from, to, 8 * from, from % 2, (ranks - 1 - from) * kBytes, kBytes});
    }
    on_device_ranks(ranks, [&](DeviceRank& me) {
      std::vector<std::byte> window(1024, static_cast<std::byte>(me.rank() + 1)), even(4 * kBytes),
          odd(4 * kBytes);
      DeviceCopies copies(
          transfer, me.rank(), window.data(),
          [&](int buffer) { return buffer == 0 ? even.data() : odd.data(); }, me.device, me.group);
      copies.run({});
      const bool takes = me.rank() + 1 < ranks || ranks == 1;
      for (int from = 0; from < ranks; ++from) {
        const auto begin = (from % 2 == 0 ? even : odd).begin() + (ranks - 1 - from) * kBytes;
        EXPECT_EQ(std::count(begin, begin + kBytes, static_cast<std::byte>(from + 1)),
                  takes ? kBytes : 0)
            << "of rank " << from << " on rank " << me.rank();
      }
    });
  }
}

TEST(DeviceGroup, SumsVotesExactlyWhereOneRankHasThem) {
  on_device_ranks(4, [&](DeviceRank& me) {
    std::vector<double> votes(1000, 0);
    const auto value = [](size_t i) {
      return static_cast<double>(lane_value(9, 0, 0, static_cast<int64_t>(i))) / 3;
    };
    for (size_t i = me.rank(); i < votes.size(); i += 4) votes[i] = value(i);
    me.group->sum({}, votes.data(), static_cast<int64_t>(votes.size()));
    for (size_t i = 0; i < votes.size(); ++i) EXPECT_EQ(votes[i], value(i));
  });
}

}  // namespace
}  // namespace tutti
