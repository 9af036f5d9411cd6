// One reduction, checked on every rank against the tree written out naively: values of a lane are a pure function of
// (seed, step, lane, element), so each rank knows what all others put in.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/reduction.h"
#include "grid/grid.h"
#include "net/make.h"

namespace tutti::testing_support {

/// A float of either sign over many magnitudes: sums in another order have other bits.
inline float lane_value(uint64_t seed, uint64_t step, int64_t lane, int64_t i) {
  uint64_t x = seed * 0x9E3779B97F4A7C15ULL + step * 0xBF58476D1CE4E5B9ULL +
               static_cast<uint64_t>(lane) * 0x94D049BB133111EBULL + static_cast<uint64_t>(i);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  x ^= x >> 31;
  const float mantissa = static_cast<float>(static_cast<int32_t>(x >> 32)) * 0x1p-31F;
  return std::ldexp(mantissa, static_cast<int>(x % 24) - 12);
}

struct ReductionCase {
  int ranks = 1, lanes = 1;
  std::vector<int> hosts;
  FoldAt fold = FoldAt::kOwner;
  ReduceKind kind = ReduceKind::kExact;
  int64_t result_size = 3001;
  bool shared = false;  ///< one parameter with two further gradients
  int bucket = 0;
  uint64_t seed = 1;

  std::string text() const {
    std::string host_list;
    for (int h : hosts) host_list += std::to_string(h);
    return fmt::format("ranks {} lanes {} hosts [{}] {}{}{} size {} seed {}", ranks, lanes, host_list,
                       fold == FoldAt::kRoot ? "root" : "owner", kind == ReduceKind::kRing ? " ring" : "",
                       shared ? " shared" : "", result_size, seed);
  }

  ReductionSpec spec() const {
    std::mt19937_64 random(seed);
    ReductionSpec spec;
    spec.bucket = bucket;
    spec.lanes = lanes;
    spec.hosts = hosts;
    spec.fold = fold;
    spec.kind = kind;
    spec.result_size = result_size;
    const int64_t a = result_size / 3,
                  b = result_size / 2;  // the piece [a, b) is the shared one; one float of padding behind
    const int64_t extra = shared ? b - a : 0;
    spec.partial_size = result_size + 2 * extra;
    spec.pieces = {{0, a, {0}}, {a, b - a, {a}}, {b + 1, result_size - b - 1, {b + 1}}};
    if (shared) spec.pieces[1].src = {a, result_size, result_size + extra};
    std::vector<int64_t> cuts{0, result_size};
    for (int r = 1; r < ranks; ++r) cuts.push_back(static_cast<int64_t>(random() % (result_size + 1)));
    std::sort(cuts.begin(), cuts.end());
    for (int r = 0; r < ranks; ++r) {
      spec.slices.push_back({cuts[r], cuts[r + 1]});
      spec.owned.push_back(lanes_of(r, ranks, lanes));
      std::vector<int64_t> offsets;
      const int64_t bytes = align_up(spec.partial_size, kAlign) * 4;
      for (size_t p = 0; p < subtrees(spec.owned[r], lanes).size(); ++p) {
        offsets.push_back(static_cast<int64_t>(p) * bytes + 64 * r);
      }
      spec.offsets.push_back(offsets);
    }
    return spec;
  }
};

inline int64_t arena_bytes(const ReductionSpec& spec) {
  int64_t most = 0;
  for (const auto& offsets : spec.offsets) {
    for (int64_t offset : offsets) most = std::max(most, offset + spec.partial_size * 4);
  }
  return most;
}

/// The tree over lanes [first, first+n), by its definition.
inline float tree_value(const ReductionCase& c, uint64_t step, int64_t first, int64_t n, int64_t i) {
  if (n == 1) return lane_value(c.seed, step, first, i);
  int64_t left = 1;
  while (left * 2 < n) left *= 2;
  return tree_value(c, step, first, left, i) + tree_value(c, step, first + left, n - left, i);
}

/// Runs `steps` steps of the case on this rank and compares every float of every slice. Partials are filled with NaN
/// before they are rewritten, so that a reader who comes too late or too early sees it.
inline void run_reduction(const ReductionCase& c, Transport& transport, int steps,
                          Duration timeout = std::chrono::seconds(20)) {
  SCOPED_TRACE(c.text() + fmt::format(" rank {} over {}", transport.rank(), transport.name()));
  const ReductionSpec spec = c.spec();
  const int me = transport.rank();
  std::vector<std::byte> memory;
  std::span<std::byte> arena = transport.window();
  if (arena.empty()) {
    memory.resize(arena_bytes(spec));
    arena = memory;
  }
  const std::vector<Range> parts = subtrees(spec.owned[me], c.lanes);
  std::vector<uint64_t> sent_before;
  for (int r = 0; r < c.ranks; ++r) sent_before.push_back(r == me ? 0 : transport.sent_bytes(r));
  SystemClock clock;
  auto reduction = make_reduction(spec, transport, arena);
  int64_t wrong = 0;
  for (int step = 0; step < steps && wrong == 0; ++step) {
    if (step > 0) reduction->await_release(step - 1, clock.after(timeout));
    for (size_t p = 0; p < parts.size(); ++p) {
      float* to = reinterpret_cast<float*>(arena.data() + spec.offsets[me][p]);
      std::fill(to, to + spec.partial_size, std::numeric_limits<float>::quiet_NaN());
      for (int64_t i = 0; i < spec.partial_size; ++i) to[i] = tree_value(c, step, parts[p].begin, parts[p].size(), i);
    }
    reduction->reduce(step, clock.after(timeout));
    reduction->gather(step, clock.after(timeout));
    for (const Piece& piece : spec.pieces) {
      for (int64_t k = 0; k < piece.size; ++k) {
        float expected = 0;
        double exact = 0, magnitude = 0;
        for (size_t s = 0; s < piece.src.size(); ++s) {
          const float term = tree_value(c, step, 0, c.lanes, piece.src[s] + k);
          expected = s == 0 ? term : expected + term;
          for (int lane = 0; lane < c.lanes; ++lane) {
            exact += lane_value(c.seed, step, lane, piece.src[s] + k);
            magnitude += std::fabs(lane_value(c.seed, step, lane, piece.src[s] + k));
          }
        }
        const int64_t at = piece.dst + k;
        int owner = 0;
        while (!spec.slices[owner].contains(at)) ++owner;
        const float got = reduction->view(owner)[at - spec.slices[owner].begin];
        // A ring may round otherwise: at most one half-ulp of the largest partial sum for each addition.
        const bool good = c.kind == ReduceKind::kRing
                              ? std::fabs(got - exact) <= c.lanes * 3 * magnitude * 0x1p-24
                              : std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(expected);
        if (!good && wrong++ == 0)
          ADD_FAILURE() << "step " << step << " float " << at << ": " << got << " != " << expected;
      }
    }
    reduction->release(step);
  }
  EXPECT_EQ(wrong, 0);
  for (int r = 0; r < c.ranks; ++r) {
    if (r == me || wrong > 0) continue;
    EXPECT_EQ(transport.sent_bytes(r) - sent_before[r], steps * reduction_bytes(spec, transport.name(), me, r))
        << "to " << r;
  }
}

/// A transport for the case, and memory for its partials where it has no window. Collective.
inline std::unique_ptr<Transport> transport_for(const ReductionCase& c, const std::string& kind, Rendezvous& rendezvous,
                                                Clock& clock) {
  TransportOptions options;
  options.kind = kind;
  options.hosts = c.hosts;
  options.window_bytes = kind == "tcp" ? 0 : arena_bytes(c.spec());
  return make_transport(options, Epoch{c.seed, 1, 1}, rendezvous, clock, nullptr,
                        clock.after(std::chrono::seconds(20)));
}

/// Runs the case for `steps` steps. Collective.
inline void run_case(const ReductionCase& c, const std::string& kind, Rendezvous& rendezvous, int steps) {
  SystemClock clock;
  auto transport = transport_for(c, kind, rendezvous, clock);
  run_reduction(c, *transport, steps);
  rendezvous.exchange({}, clock.after(std::chrono::seconds(20)));  // nobody leaves while others still read
}

/// The last of three ranks never comes to the reduction: the others give up at their deadline, naming it. Collective.
inline void expect_missing_rank(const ReductionCase& c, const std::string& kind, int rank, Rendezvous& rendezvous) {
  SystemClock clock;
  auto transport = transport_for(c, kind, rendezvous, clock);
  if (rank != 2) {
    std::vector<std::byte> memory(arena_bytes(c.spec()));
    auto reduction = make_reduction(c.spec(), *transport, transport->window().empty() ? memory : transport->window());
    try {
      reduction->reduce(7, clock.after(std::chrono::milliseconds(200)));
      ADD_FAILURE() << "reduced without rank 2";
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().operation, fmt::format("reduce bucket {}", c.bucket));
      EXPECT_EQ(e.failure().peer, 2) << e.what();
      EXPECT_EQ(e.failure().sequence, 7U);
    }
  }
  rendezvous.exchange({}, clock.after(std::chrono::seconds(20)));
}

/// All layouts of `ranks` ranks that the tests go through: lanes 1..9 and 16, where sums are folded, shared parameters,
/// hosts.
inline std::vector<ReductionCase> layouts(int ranks, uint64_t seed) {
  std::vector<ReductionCase> all;
  for (int lanes : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    if (lanes < ranks) continue;
    ReductionCase c;
    c.ranks = ranks;
    c.lanes = lanes;
    c.result_size = 200 + 37 * lanes;
    std::vector<std::vector<int>> hosts{std::vector<int>(ranks, 0)};
    if (ranks == 2) hosts.push_back({0, 1});
    if (ranks == 3) hosts.push_back({0, 0, 1});  // unequal: flat
    if (ranks == 4) hosts.insert(hosts.end(), {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2, 3}});
    for (const auto& h : hosts) {
      for (FoldAt fold : {FoldAt::kOwner, FoldAt::kRoot}) {
        for (bool shared : {false, true}) {
          c.hosts = h;
          c.fold = fold;
          c.shared = shared;
          c.bucket = static_cast<int>(all.size() % 300);
          c.seed = seed + all.size();
          all.push_back(c);
        }
      }
    }
    c.hosts = hosts[0];
    c.fold = FoldAt::kOwner;
    c.kind = ReduceKind::kRing;
    all.push_back(c);
  }
  return all;
}

}  // namespace tutti::testing_support
