// The reduction on devices, among threads with devices on the host: the bits of the tree in every layout, without
// taking memory or waiting in a step, in few messages.
#include "device/reduction.h"

#include <gtest/gtest.h>

#include <random>

#include "support/device_bucket.h"
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
  std::unique_ptr<DeviceBucket> bucket(const ReductionCase& c) const {
    return std::make_unique<DeviceBucket>(c, device, group, host_state_kernels());
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

ReductionCase case_of(int ranks, int lanes, FoldAt fold, bool shared, ReduceKind kind = ReduceKind::kExact) {
  ReductionCase c{.ranks = ranks, .lanes = lanes, .fold = fold, .kind = kind, .shared = shared};
  c.result_size = 150 + 37 * lanes + 11 * ranks;
  c.seed = std::random_device{}();
  return c;
}

class DeviceReductionOf : public testing::TestWithParam<int> {};

TEST_P(DeviceReductionOf, HasTheBitsOfTheTreeInEveryLayout) {
  const int ranks = GetParam();
  for (int lanes = ranks; lanes <= 8; ++lanes) {
    // Buckets that are under way together.
    std::vector<ReductionCase> cases;
    for (FoldAt fold : {FoldAt::kOwner, FoldAt::kRoot}) {
      for (bool shared : {false, true}) cases.push_back(case_of(ranks, lanes, fold, shared));
    }
    on_device_ranks(ranks, [&](DeviceRank& me) {
      std::vector<std::unique_ptr<DeviceBucket>> buckets;
      for (const ReductionCase& c : cases) buckets.push_back(me.bucket(c));
      const Stream stream = me.device.make_stream();
      for (uint64_t step = 0; step < 2; ++step) {
        for (auto& bucket : buckets) bucket->fill(stream, step);
        for (auto& bucket : buckets) bucket->reduction().reduce(stream);
        for (size_t b = 0; b < buckets.size(); ++b) {
          EXPECT_EQ(buckets[b]->wrong(stream, step, buckets[b]->spec().slices[me.rank()]).bits, 0)
              << "own slice: " << cases[b].text() << " rank " << me.rank() << " step " << step;
        }
        for (auto& bucket : buckets) bucket->reduction().gather(stream);
        for (size_t b = 0; b < buckets.size(); ++b) {
          EXPECT_EQ(buckets[b]->wrong(stream, step, {0, cases[b].result_size}).bits, 0)
              << cases[b].text() << " rank " << me.rank() << " step " << step;
        }
      }
    });
  }
}

TEST_P(DeviceReductionOf, ByRingIsCloseToTheTree) {
  const int ranks = GetParam();
  for (int lanes = ranks; lanes <= 8; ++lanes) {
    const ReductionCase c = case_of(ranks, lanes, FoldAt::kOwner, true, ReduceKind::kRing);
    on_device_ranks(ranks, [&](DeviceRank& me) {
      const auto bucket = me.bucket(c);
      bucket->fill({}, 5);
      bucket->reduction().reduce({});
      bucket->reduction().gather({});
      const DeviceBucket::Wrong wrong = bucket->wrong({}, 5, {0, c.result_size});
      EXPECT_EQ(wrong.far, 0) << c.text() << " rank " << me.rank();
      // Also shows that the numbers tell one order of additions from another: rank order is not the tree's.
      if (ranks == 4 && lanes == 4) EXPECT_GT(wrong.bits, 0) << c.text();
      EXPECT_EQ(bucket->reduction().scratch_bytes(), 0);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceReductionOf, testing::Range(1, 5));

TEST(DeviceReduction, HasTheBitsOfTheCpusReduction) {
  ReductionCase c = case_of(3, 7, FoldAt::kOwner, true);
  c.result_size = 20'000;
  on_device_ranks(3, [&](DeviceRank& me) {
    const auto bucket = me.bucket(c);
    bucket->fill({}, 0);
    std::vector<std::byte> arena(arena_bytes(bucket->spec()));
    for (size_t p = 0; p < bucket->spec().offsets[me.rank()].size(); ++p) {
      std::memcpy(arena.data() + bucket->spec().offsets[me.rank()][p], bucket->partial(p),
                  bucket->spec().partial_size * 4);
    }
    SystemClock clock;
    auto cpu = make_reduction(bucket->spec(), me.transport, arena);
    cpu->reduce(0, clock.after(std::chrono::seconds(20)));
    cpu->gather(0, clock.after(std::chrono::seconds(20)));
    bucket->reduction().reduce({});
    bucket->reduction().gather({});
    for (const Piece& piece : bucket->spec().pieces) {
      for (int r = 0; r < 3; ++r) {
        const Range slice = bucket->spec().slices[r];
        const int64_t begin = std::max(piece.dst, slice.begin), end = std::min(piece.dst + piece.size, slice.end);
        if (begin >= end) continue;
        EXPECT_EQ(
            std::memcmp(cpu->view(r) + (begin - slice.begin), bucket->reduction().result() + begin, (end - begin) * 4),
            0)
            << c.text() << " slice " << r;
      }
    }
  });
}

TEST(DeviceReduction, TakesItsScratchOnceAndNeverWaitsForTheDevice) {
  for (FoldAt fold : {FoldAt::kOwner, FoldAt::kRoot}) {
    const ReductionCase c = case_of(3, 5, fold, true);
    on_device_ranks(3, [&](DeviceRank& me) {
      const int64_t held = me.device.held_bytes();
      {
        const auto bucket = me.bucket(c);
        const int64_t arena = arena_bytes(bucket->spec());
        const int64_t scratch = DeviceReduction::scratch_bytes(bucket->spec(), me.rank());
        EXPECT_EQ(bucket->reduction().scratch_bytes(), scratch);
        EXPECT_EQ(me.device.held_bytes() - held, arena + scratch);
        if (fold == FoldAt::kRoot) EXPECT_EQ(scratch > 0, me.rank() == 0);
        bucket->fill({}, 0);
        const int64_t takes = me.device.takes(), synchronisations = me.device.synchronisations();
        for (int step = 0; step < 3; ++step) {
          bucket->reduction().reduce({});
          bucket->reduction().gather({});
        }
        EXPECT_EQ(me.device.takes(), takes);
        EXPECT_EQ(me.device.synchronisations(), synchronisations);
      }
      EXPECT_EQ(me.device.held_bytes(), held) << "the scratch was not given back";
    });
  }
}

TEST(DeviceReduction, SendsOneMessageForEveryPartialAndRun) {
  ReductionCase c = case_of(2, 4, FoldAt::kOwner, true);
  on_device_ranks(2, [&](DeviceRank& me) {
    const auto bucket = me.bucket(c);
    bucket->fill({}, 0);
    bucket->reduction().reduce({});
    EXPECT_EQ(me.group->exchanges(), 1);
    // Two lanes a rank are one partial; of it the slice and at most two further stretches of the shared parameter.
    EXPECT_LE(me.group->messages(), 3);
    const int64_t before = me.group->messages();
    bucket->reduction().gather({});
    EXPECT_EQ(me.group->exchanges(), 2);
    EXPECT_LE(me.group->messages() - before, 1);
  });
}

TEST(DeviceReduction, JoinsNeighbouringRunsIntoOneMessage) {
  // The whole result is shared, its further gradient right behind it: one run for rank 0, which folds everything.
  ReductionSpec spec;
  spec.lanes = 2;
  spec.owned = {{0, 1}, {1, 2}};
  spec.offsets = {{0}, {0}};
  spec.result_size = 100;
  spec.partial_size = 200;
  spec.pieces = {{0, 60, {0, 100}}, {60, 40, {60, 160}}};
  spec.slices = {{0, 50}, {50, 100}};
  spec.fold = FoldAt::kRoot;
  on_device_ranks(2, [&](DeviceRank& me) {
    std::span<std::byte> arena = me.device.take(BufferKind::kGradient, 800);
    auto* floats = reinterpret_cast<float*>(arena.data());
    for (int i = 0; i < 200; ++i) floats[i] = static_cast<float>(i + 1000 * me.rank());
    DeviceReduction reduction(spec, floats, me.device, me.group, host_state_kernels());
    reduction.reduce({});
    EXPECT_EQ(me.group->messages(), 1);  // rank 1's partial, rank 0's result
    for (int i = 0; i < 100; ++i) EXPECT_EQ(reduction.result()[i], static_cast<float>(4 * i + 2 * 100 + 2 * 1000));
  });
}

TEST(DeviceReduction, OfAMissingRankIsACommError) {
  const ReductionCase c = case_of(3, 3, FoldAt::kOwner, false);
  expect_all_well(true, 3, [&](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport = make_transport({.kind = "inproc"}, Epoch{1, 1, 1}, rendezvous, clock, nullptr,
                                    clock.after(std::chrono::seconds(20)));
    HostDevice device;
    HostGroup group(*transport, clock, std::chrono::milliseconds(200));
    DeviceBucket bucket(c, device, &group, host_state_kernels());
    if (rank != 2) EXPECT_THROW(bucket.reduction().reduce({}), CommError);
    rendezvous.exchange({}, clock.after(std::chrono::seconds(20)));
  });
}

TEST(DeviceGroup, SumsVotesExactlyWhereOneRankHasThem) {
  on_device_ranks(4, [&](DeviceRank& me) {
    std::vector<double> votes(1000, 0);
    const auto value = [](size_t i) { return static_cast<double>(lane_value(9, 0, 0, static_cast<int64_t>(i))) / 3; };
    for (size_t i = me.rank(); i < votes.size(); i += 4) votes[i] = value(i);
    me.group->sum({}, votes.data(), static_cast<int64_t>(votes.size()));
    for (size_t i = 0; i < votes.size(); ++i) EXPECT_EQ(votes[i], value(i));
  });
}

}  // namespace
}  // namespace tutti
