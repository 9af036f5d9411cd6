// The hash of a plan covers every field of everything in it: each struct is taken apart by
// structured bindings, which do not compile when a field was added and is not named here.
#include "base/hash.h"

#include <string>
#include <vector>

#include "plan/ir/program.h"

namespace tutti {

namespace {

/// Feeds values to SHA-256. Every list is preceded by its length, so that two different plans never
/// feed the same bytes.
class Hasher {
 public:
  template <typename... T>
  void all(const T&... values) {
    (add(values), ...);
  }
  uint64_t finish() {
    // The first eight bytes, little-endian. They are enough to find ranks that planned from
    // different inputs, and fit into every message (net/transport.h).
    const Digest digest = sha_.finish();
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(digest[i]) << (8 * i);
    return value;
  }

  // What structs are made of: numbers, texts, lists, pairs. Every number is fed as eight bytes, so
  // the hash does not depend on how wide its type is.
  template <typename T>
    requires std::is_integral_v<T> || std::is_enum_v<T>
  void add(T value) {
    sha_.add(static_cast<uint64_t>(value));
  }
  void add(const std::string& text) {
    add(text.size());
    sha_.add(std::string_view(text));
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(value);
  }
  template <typename A, typename B>
  void add(const std::pair<A, B>& pair) {
    all(pair.first, pair.second);
  }

  // Structs, the inner ones first.
  void add(const Range& range) {
    const auto& [begin, end] = range;
    all(begin, end);
  }
  void add(const Coordinates& at) {
    const auto& [data, tensor, pipeline] = at;
    all(data, tensor, pipeline);
  }
  void add(const Mesh& mesh) {
    const auto& [data, tensor, pipeline, shards] = mesh;
    all(data, tensor, pipeline, shards);
  }
  void add(const Batch& batch) {
    const auto& [lanes, micro_batches, micro_batch_size] = batch;
    all(lanes, micro_batches, micro_batch_size);
  }
  void add(const UnitRange& part) {
    const auto& [unit, range] = part;
    all(unit, range);
  }
  void add(const SumSource::Term& term) {
    const auto& [rank, offset] = term;
    all(rank, offset);
  }
  void add(const SumSource& source) {
    const auto& [to, terms] = source;
    all(to, terms);
  }
  void add(const UnitSum& sum) {
    const auto& [unit, slices, sources] = sum;
    all(unit, slices, sources);
  }
  void add(const LevelSum& sum) {
    const auto& [level, terms, order] = sum;
    all(level, terms, order);
  }
  void add(const SumTransfer& sum) {
    const auto& [ranks, units, sums, round, rounds, levels, by_hosts, ordered, returned] = sum;
    all(ranks, units, sums, round, rounds, levels, by_hosts, ordered, returned);
  }
  void add(const CopyTransfer::Copy& copy) {
    const auto& [from, to, offset, buffer, at, bytes] = copy;
    all(from, to, offset, buffer, at, bytes);
  }
  void add(const CopyTransfer& transfer) {
    const auto& [updated, gradients, ranks, copies] = transfer;
    all(updated, gradients, ranks, copies);
  }
  void add(const Owned& owned) {
    const auto& [range, ranks] = owned;
    all(range, ranks);
  }
  void add(const Ownership& ownership) {
    const auto& [sums, parameters, moments] = ownership;
    all(sums, parameters, moments);
  }
  void add(const RankPlace& place) {
    const auto& [at, columns, lanes] = place;
    all(at, columns, lanes);
  }
  void add(const PlacedRange& placed) {
    const auto& [range, at] = placed;
    all(range, at);
  }
  void add(const Buffer& buffer) {
    const auto& [name, kind, bytes, unit, level, range, window, window_offset, offloaded, lent,
                 same_as, temporaries, placed] = buffer;
    all(name, kind, bytes, unit, level, range, window, window_offset, offloaded, lent, same_as,
        temporaries, placed);
  }
  void add(const Operand& operand) {
    const auto& [role, access, buffer, unit, range, rank] = operand;
    all(role, access, buffer, unit, range, rank);
  }
  void add(const UnitBuffer& buffer) {
    const auto& [unit, number] = buffer;
    all(unit, number);
  }
  void add(const Flow& flow) {
    const auto& [in, out, grad_out, grad_in, saved, deferred, work, parameters, gradients] = flow;
    all(in, out, grad_out, grad_in, saved, deferred, work, parameters, gradients);
  }
  void add(const Add& sum) {
    const auto& [into, from] = sum;
    all(into, from);
  }
  void add(const Instruction& instruction) {
    const auto& [op, id, block, segment, lane, micro, waits, signal, adds, operands, parcel,
                 transfer, part, again, round, group, peer, bytes, exchange, output, flow] =
        instruction;
    all(op, id, block, segment, lane, micro, waits, signal, adds, operands, parcel, transfer, part,
        again, round, group, peer, bytes, exchange, output, flow);
  }
  void add(const Queue& queue) {
    const auto& [name, instructions, use] = queue;
    all(name, instructions, use);
  }
  void add(const Program& program) {
    const auto& [rank, queues, buffers, events] = program;
    all(rank, queues, buffers, events);
  }
  void add(const Plan& plan) {
    const auto& [ranks, programs, groups, mesh, batch, micro_order, training, optimizer_slots,
                 places, homes, ownership, parcels, sums, copies] = plan;
    all(ranks, programs, groups, mesh, batch, micro_order, training, optimizer_slots, places, homes,
        ownership, parcels, sums, copies);
  }

 private:
  Sha256 sha_;
};

}  // namespace

uint64_t plan_hash(const Plan& plan) {
  Hasher hash;
  hash.add(plan);
  return hash.finish();
}

}  // namespace tutti
