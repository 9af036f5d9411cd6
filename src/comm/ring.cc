// One hop at a time. The receive is posted before the send, so that no two neighbours
// wait for each other.
#include "comm/ring.h"

#include "comm/fold.h"
#include "comm/posted.h"

namespace tutti {
namespace {

struct Neighbours {
  int rank, size;
  int next() const { return (rank + 1) % size; }
  int previous() const { return (rank + size - 1) % size; }
  int back(int steps) const { return ((rank - steps) % size + size) % size; }
};

}  // namespace

void ring_reduce_scatter(Transport& transport, Tag tag, std::span<float> data,
                         const std::vector<Range>& slices, std::span<float> scratch,
                         const Patience& patience) {
  const Neighbours ring{transport.rank(), transport.size()};
  for (int hop = 0; hop + 1 < ring.size; ++hop, ++tag.part) {
    const Range out = slices[ring.back(1 + hop)], in = slices[ring.back(2 + hop)];
    Posted posted(transport);
    posted.recv(ring.previous(), tag, std::as_writable_bytes(scratch.first(in.size())));
    posted.send(ring.next(), tag, std::as_bytes(data.subspan(out.begin, out.size())));
    posted.wait_all(patience);

    // What came from the previous rank has the sums of all ranks before it; mine is added, and the
    // next hop sends it on.
    add_into(data.data() + in.begin, scratch.data(), in.size());
  }
}

void ring_all_gather(Transport& transport, Tag tag, std::span<float> data,
                     const std::vector<Range>& slices, const Patience& patience) {
  const Neighbours ring{transport.rank(), transport.size()};
  for (int hop = 0; hop + 1 < ring.size; ++hop, ++tag.part) {
    const Range out = slices[ring.back(hop)], in = slices[ring.back(1 + hop)];
    Posted posted(transport);
    posted.recv(ring.previous(), tag, std::as_writable_bytes(data.subspan(in.begin, in.size())));
    posted.send(ring.next(), tag, std::as_bytes(data.subspan(out.begin, out.size())));
    posted.wait_all(patience);
  }
}

}  // namespace tutti
