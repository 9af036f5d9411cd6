#include "engine/device/travel.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {

namespace {

/// For what a queue's reduces receive: they run one after another.
int64_t queue_scratch_bytes(const Transfers& transfers, const Queue& queue, int rank) {
  int64_t bytes = 0;
  for (const Instruction& i : queue.instructions)
    if (i.op == Op::kReduce) bytes = std::max(bytes, DeviceSum::scratch_bytes(transfers.sum(i), rank));
  return align_up(bytes, 256);
}

}  // namespace

DeviceTravel::DeviceTravel(const Parts& parts) : p_(parts), program_(parts.plan.programs[parts.rank]) {
  const Transfers transfers(p_.plan, p_.shape, p_.options);
  for (const Queue& queue : program_.queues) {
    auto* scratch = p_.arrays.take<std::byte>(BufferKind::kMessage, queue_scratch_bytes(transfers, queue, p_.rank));
    for (const Instruction& i : queue.instructions) prepare(i, transfers, queue.name, scratch);
  }
  std::sort(refreshes_.begin(), refreshes_.end(),
            [](const Instruction* a, const Instruction* b) { return a->id < b->id; });
}

int64_t DeviceTravel::scratch_bytes(const Transfers& transfers, const Program& program) {
  int64_t bytes = 0;
  for (const Queue& queue : program.queues) bytes += queue_scratch_bytes(transfers, queue, program.rank);
  return bytes;
}

void DeviceTravel::prepare(const Instruction& i, const Transfers& transfers, const std::string& queue,
                           std::byte* scratch) {
  switch (i.op) {
    case Op::kReduce:
      return prepare_reduce(i, transfers, queue, scratch);
    case Op::kGather: {
      std::vector<std::byte*> targets;
      for (int b : i.writes) targets.push_back(p_.memory(b));
      const CopyTransfer transfer = transfers.copy(i);
      if (transfer.updated) refreshes_.push_back(&i);
      copies_[i.id] =
          std::make_unique<DeviceCopies>(transfer, p_.rank, p_.window, targets, p_.device, p_.groups.meeting(queue));
      return;
    }
    case Op::kExchange:
      return prepare_exchange(i);
    case Op::kSend:
    case Op::kRecv:
      links_[i.id] = &p_.groups.link(link_of(i, queue, p_.rank));
      return;
    default:
      return;
  }
}

void DeviceTravel::prepare_reduce(const Instruction& i, const Transfers& transfers, const std::string& queue,
                                  std::byte* scratch) {
  const SumTransfer transfer = transfers.sum(i);
  std::vector<float*> levels;
  for (int b : i.writes) levels.push_back(reinterpret_cast<float*>(p_.memory(b)) + slice_offset(transfer, i, p_.rank));
  sums_[i.id] =
      std::make_unique<DeviceSum>(transfer, p_.rank, p_.window, levels, scratch, p_.groups.meeting(queue), p_.kernels);
}

void DeviceTravel::prepare_exchange(const Instruction& i) {
  constexpr int64_t kFloat = sizeof(float);
  const DeviceColumns::Members members{p_.shape.columns, p_.groups.columns(), p_.device, p_.kernels};
  const int64_t bytes = p_.place.exchanged_bytes(i);
  std::vector<std::byte*> in, out;
  for (int b : i.flow.in) in.push_back(p_.memory(b));
  for (int b : i.flow.out) out.push_back(p_.memory(b));
  if (i.exchange == Exchange::kGather) {
    exchanges_.emplace(i.id, DeviceColumns::gather(members, in, bytes, out[0]));
    return;
  }
  std::vector<float*> sums;
  for (std::byte* sum : in) sums.push_back(reinterpret_cast<float*>(sum));
  const bool narrow = p_.place.scattered_element_bytes(i) < kFloat;
  std::byte* scratch = i.flow.work >= 0 ? p_.memory(i.flow.work) : nullptr;
  exchanges_.emplace(i.id, DeviceColumns::scatter(members, sums, bytes / kFloat, out, scratch,
                                                  narrow ? p_.precision : Precision::kFloat32));
}

void DeviceTravel::write_low(const Instruction& i, Stream stream) const {
  for (int b : i.writes)
    if (program_.buffers[b].kind == BufferKind::kParameter)
      p_.low.write(stream, program_.buffers[b], i.block, p_.memory(b));
}

void DeviceTravel::copy_tier(const Instruction& i, Stream stream) const {
  for (size_t k = 0; k < i.reads.size(); ++k) {
    const int from = i.reads[k], to = i.writes[k], tier = i.op == Op::kFetch ? from : to;
    const auto bytes = static_cast<size_t>(program_.buffers[tier].bytes);
    if (bytes > 0) p_.device.copy(stream, p_.memory(to), p_.memory(from), bytes);
  }
}

void DeviceTravel::put(const Instruction& i, Stream stream) {
  switch (i.op) {
    case Op::kReduce:
      return sums_.at(i.id)->run(stream);
    case Op::kGather:
      copies_.at(i.id)->run(stream);
      return write_low(i, stream);
    case Op::kExchange:
      return exchanges_.at(i.id).run(stream);
    case Op::kSend: {
      const DeviceSend send{1, p_.memory(i.reads[0]), static_cast<size_t>(i.bytes)};
      return links_.at(i.id)->exchange(stream, std::span(&send, 1), {});
    }
    case Op::kRecv: {
      const DeviceReceive receive{0, p_.memory(i.writes[0]), static_cast<size_t>(i.bytes)};
      return links_.at(i.id)->exchange(stream, {}, std::span(&receive, 1));
    }
    case Op::kFetch:
      copy_tier(i, stream);
      return write_low(i, stream);
    case Op::kEvict:
      return copy_tier(i, stream);
    default:
      TUTTI_CHECK(false, "{} does not travel", to_string(i));
  }
}

}  // namespace tutti
