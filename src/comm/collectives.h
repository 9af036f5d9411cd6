// Collectives on spans, written once on the messages of a Transport (windows are used by
// comm/pulls.h). Every rank calls the same operations in the same order on one Channel. A channel
// belongs to one queue (thread) at a time. Every failure is a CommError that names the operation
// and the number of the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "grid/grid.h"
#include "net/transport.h"
#include "plan/ir/tags.h"

namespace tutti {

/// One queue's view of a transport: tags of its own, a sequence that counts calls, and how long
/// each of them waits.
class Channel {
 public:
  /// `operations`: this channel's own on its transport, kChannelOperations of them. A call gives up
  /// after `timeout`. With `signs`, which counts signs of work, it gives up only after a time-out
  /// without any.
  Channel(Transport& transport, Clock& clock, const Operations& operations, Duration timeout,
          std::function<uint64_t()> signs = {});
  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  Transport& transport() { return transport_; }
  Deadline deadline() const { return clock_.after(timeout_); }

  void barrier();
  void broadcast(std::span<std::byte> bytes, int root);
  /// Rank r's bytes end up in all[r * mine.size() ...]; sizes are equal. `begun` is called when all
  /// messages are posted, before the first is waited for.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                  const std::function<void()>& begun = {});
  /// Sends to[r] to rank r and receives from[r] from it, for every other rank. The sizes agree in
  /// pairs and may be zero.
  void all_to_all(std::span<const std::span<const std::byte>> to,
                  std::span<const std::span<std::byte>> from);
  /// Rank r ends with slice r of the sum in data[slices[r]]; the rest of its data is scratch
  /// afterwards. Exact: every rank is one leaf of the tree.
  void reduce_scatter(std::span<float> data, const std::vector<Range>& slices);
  /// Rank r hands out data[slices[r]], and everybody ends with all slices.
  void all_gather_slices(std::span<float> data, const std::vector<Range>& slices);
  /// Everybody ends with the sum, over the tree of ranks.
  void all_reduce(std::span<float> data);
  /// The classical ring: N-1 hops of 1/N of the data each, twice. The order of additions depends on
  /// N, so this is for `numerics.reduce = "ring"` alone.
  void ring_all_reduce(std::span<float> data);
  /// Messages between two ranks alone; not counted as calls.
  void send(int peer, std::span<const std::byte> bytes);
  void recv(int peer, std::span<std::byte> bytes);

 private:
  Tag next(uint32_t operation, uint32_t part = 0);
  Patience patience() const;
  Transport& transport_;
  Clock& clock_;
  Operations operations_;
  Duration timeout_;
  std::function<uint64_t()> signs_;
  uint64_t sequence_ = 0;
};

}  // namespace tutti
