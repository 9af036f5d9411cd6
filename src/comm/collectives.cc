// Collectives are written directly, not in hops over neighbours: a rank that is missing is then the
// very rank that the others wait for, and the error names it. Receives are posted before sends
// everywhere, so that what arrives goes straight to its place.
#include "comm/collectives.h"

#include <algorithm>

#include "comm/fold.h"
#include "comm/posted.h"
#include "comm/ring.h"
#include "comm/tree.h"

namespace tutti {
namespace {

// Each collective has an operation id of its own, counted from the base of its channel.
enum Operation : uint32_t {
  kBarrier,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGatherSlices,
  kRing,
  kRingGather,
  kMessage,
  kAllToAll,
  kOperations
};
static_assert(kOperations <= kChannelOperations);

// Nearly equal cuts, on borders of kAlign floats.
std::vector<Range> even_slices(int64_t n, int parts) {
  std::vector<Range> slices;
  const int64_t lines = (n + kAlign - 1) / kAlign;
  for (int p = 0; p < parts; ++p) {
    slices.push_back(
        {std::min(n, lines * p / parts * kAlign), std::min(n, lines * (p + 1) / parts * kAlign)});
  }
  return slices;
}

std::vector<FoldStep> order_of_ranks(int ranks) {
  std::vector<Range> leaves;
  for (int r = 0; r < ranks; ++r) leaves.push_back({r, r + 1});
  return fold_order(leaves, {0, ranks});
}

}  // namespace

Channel::Channel(Transport& transport, Clock& clock, const Operations& operations, Duration timeout,
                 std::function<uint64_t()> signs)
    : transport_(transport),
      clock_(clock),
      operations_(operations),
      timeout_(timeout),
      signs_(std::move(signs)) {}

Patience Channel::patience() const {
  return signs_ ? Patience(clock_, timeout_, signs_) : Patience(deadline());
}

Tag Channel::next(uint32_t operation, uint32_t part) {
  return {operations_.at(operation), part, sequence_};
}

void Channel::barrier() {
  named("barrier", sequence_, [&] {
    const Tag tag = next(kBarrier);

    // A byte from everybody, and one that is sent to everybody: its value does not matter.
    std::vector<std::byte> arrived(size() + 1);
    Posted posted(transport_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.recv(r, tag, std::span(arrived).subspan(r, 1));
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.send(r, tag, std::span(arrived).subspan(size(), 1));
    }
    posted.wait_all(patience());
  });
  ++sequence_;
}

// A binomial tree over the ranks counted from the root, log2 N hops deep: the parent of v is v
// without its lowest bit.
void Channel::broadcast(std::span<std::byte> bytes, int root) {
  named("broadcast", sequence_, [&] {
    const Tag tag = next(kBroadcast);
    const int me = (rank() - root + size()) % size();
    const auto real = [&](int v) { return (v + root) % size(); };
    const Patience end = patience();
    Posted posted(transport_);

    // Receive from the parent, which is lower by my lowest bit; the root has none.
    int bit = 1;
    while (bit < size() && (me & bit) == 0) bit *= 2;
    if (me != 0) posted.recv(real(me - bit), tag, bytes);
    posted.wait_all(end);

    // Then hand it to the children, one for each bit below mine; the largest subtree first, since
    // it takes longest.
    for (bit /= 2; bit > 0; bit /= 2) {
      if (me + bit < size()) posted.send(real(me + bit), tag, bytes);
    }
    posted.wait_all(end);
  });
  ++sequence_;
}

void Channel::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                         const std::function<void()>& begun) {
  TUTTI_CHECK(all.size() == mine.size() * size(), "all_gather of {} bytes from {} ranks into {}",
              mine.size(), size(), all.size());
  named("all_gather", sequence_, [&] {
    const Tag tag = next(kAllGather);
    Posted posted(transport_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.recv(r, tag, all.subspan(r * mine.size(), mine.size()));
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.send(r, tag, mine);
    }

    // My own bytes may be in place already.
    if (mine.data() != all.data() + rank() * mine.size()) {
      std::copy(mine.begin(), mine.end(), all.begin() + rank() * mine.size());
    }
    if (begun) begun();
    posted.wait_all(patience());
  });
  ++sequence_;
}

void Channel::all_to_all(std::span<const std::span<const std::byte>> to,
                         std::span<const std::span<std::byte>> from) {
  named("all_to_all", sequence_, [&] {
    const Tag tag = next(kAllToAll);
    Posted posted(transport_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.recv(r, tag, from[r]);
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.send(r, tag, to[r]);
    }
    posted.wait_all(patience());
  });
  ++sequence_;
}

void Channel::reduce_scatter(std::span<float> data, const std::vector<Range>& slices) {
  named("reduce_scatter", sequence_, [&] {
    const Tag tag = next(kReduceScatter);
    const Range mine = slices[rank()];

    // My slice of every rank's data: mine in place, the others' in scratch. All terms have to be
    // there before the fold, which goes by the tree over ranks.
    std::vector<float> scratch(mine.size() * size());
    std::vector<const float*> terms(size());
    Posted posted(transport_);
    for (int r = 0; r < size(); ++r) {
      const std::span<float> in = std::span(scratch).subspan(r * mine.size(), mine.size());
      terms[r] = r == rank() ? data.data() + mine.begin : in.data();
      if (r != rank()) posted.recv(r, tag, std::as_writable_bytes(in));
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank())
        posted.send(r, tag, std::as_bytes(data.subspan(slices[r].begin, slices[r].size())));
    }

    posted.wait_all(patience());
    fold(data.data() + mine.begin, terms, order_of_ranks(size()), mine.size());
  });
  ++sequence_;
}

void Channel::all_gather_slices(std::span<float> data, const std::vector<Range>& slices) {
  named("all_gather_slices", sequence_, [&] {
    const Tag tag = next(kGatherSlices);
    const auto bytes = [&](int r) {
      return std::as_writable_bytes(data.subspan(slices[r].begin, slices[r].size()));
    };
    Posted posted(transport_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.recv(r, tag, bytes(r));
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.send(r, tag, bytes(rank()));
    }
    posted.wait_all(patience());
  });
  ++sequence_;
}

// Small arrays take one hop instead of two: everybody gets everything and makes the same additions.
// Larger ones are summed slice by slice, so nobody receives N times the data.
void Channel::all_reduce(std::span<float> data) {
  constexpr size_t kSmall = 4096;  // floats
  if (data.size() > kSmall) {
    const std::vector<Range> slices = even_slices(static_cast<int64_t>(data.size()), size());
    reduce_scatter(data, slices);
    all_gather_slices(data, slices);
    return;
  }

  std::vector<float> all(data.size() * size());
  all_gather(std::as_bytes(data), std::as_writable_bytes(std::span(all)));
  std::vector<const float*> terms;
  for (int r = 0; r < size(); ++r) terms.push_back(all.data() + r * data.size());
  fold(data.data(), terms, order_of_ranks(size()), static_cast<int64_t>(data.size()));
}

void Channel::ring_all_reduce(std::span<float> data) {
  named("ring_all_reduce", sequence_, [&] {
    const std::vector<Range> slices = even_slices(static_cast<int64_t>(data.size()), size());
    std::vector<float> scratch(data.size() / size() + 2 * kAlign);
    const Deadline end = deadline();
    ring_reduce_scatter(transport_, next(kRing), data, slices, scratch, end);
    ring_all_gather(transport_, next(kRingGather), data, slices, end);
  });
  ++sequence_;
}

// Not counted in the sequence, which would differ between ranks: messages between two ranks
// match in their order.
void Channel::send(int peer, std::span<const std::byte> bytes) {
  named("send", sequence_, [&] {
    Posted posted(transport_);
    posted.send(peer, {operations_.at(kMessage), 0, 0}, bytes);
    posted.wait_all(patience());
  });
}

void Channel::recv(int peer, std::span<std::byte> bytes) {
  named("recv", sequence_, [&] {
    Posted posted(transport_);
    posted.recv(peer, {operations_.at(kMessage), 0, 0}, bytes);
    posted.wait_all(patience());
  });
}

}  // namespace tutti
