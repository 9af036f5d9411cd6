// Collectives on spans, written once on Transport messages (windows are used by comm/pulls.h).
// Every rank calls the same operations in the same order on one Channel; a channel belongs to one
// queue (thread) at a time.
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

/// One queue's view of a transport: its own space of tags, a sequence that counts calls, a time-out
/// for each.
class Channel {
 public:
  /// `operations`: this channel's own on its transport, kChannelOperations of them.
  Channel(Transport& transport, Clock& clock, const Operations& operations, Duration timeout);
  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  Transport& transport() { return transport_; }
  Deadline deadline() const { return clock_.after(timeout_); }

  void barrier();
  void broadcast(std::span<std::byte> bytes, int root);
  /// all[r*mine.size() ...] = rank r's bytes. Equal sizes. `begun` is called when all messages are
  /// posted, before the first is waited for.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                  const std::function<void()>& begun = {});
  /// Sends to[r] to rank r and receives from[r] from it, for every other rank; sizes agree in pairs
  /// and may be zero.
  void all_to_all(std::span<const std::span<const std::byte>> to,
                  std::span<const std::span<std::byte>> from);
  /// Rank r ends with slice r of the sum in data[slices[r]]; the rest of data is scratch after it.
  /// Exact: every rank is one leaf of the tree.
  void reduce_scatter(std::span<float> data, const std::vector<Range>& slices);
  void all_gather_slices(std::span<float> data, const std::vector<Range>& slices);
  void all_reduce(std::span<float> data);
  /// The classical ring: (N-1) hops of 1/N each, twice. The order of additions depends on N:
  /// `numerics.reduce = "ring"`.
  void ring_all_reduce(std::span<float> data);
  void send(int peer, std::span<const std::byte> bytes);
  void recv(int peer, std::span<std::byte> bytes);

 private:
  Tag next(uint32_t operation, uint32_t part = 0);
  Transport& transport_;
  Clock& clock_;
  Operations operations_;
  Duration timeout_;
  uint64_t sequence_ = 0;
};

}  // namespace tutti
