// Copies are known by the address of their buffer and not by its number, because both programs of a
// rank may name the same memory.
#include "engine/device/low_copies.h"

#include <algorithm>
#include <set>

#include "engine/device/kind.h"

namespace tutti {

namespace {

constexpr int64_t kNarrow = 2;  // bytes

/// The buffers of a program that segments read parameters from.
std::set<int> read_parameters(const Program& program) {
  std::set<int> buffers;
  for (const Queue& queue : program.queues)
    for (const Instruction& i : queue.instructions)
      if (i.op == Op::kForward || i.op == Op::kBackward)
        for (const UnitBuffer& u : i.flow.parameters) buffers.insert(u.buffer);
  return buffers;
}

int64_t copy_bytes(int64_t floats) { return align_up(floats * kNarrow, 256); }

// A buffer that gets a copy.
struct Copied {
  int buffer = -1;
  bool forward = false;  // only the program of evaluation has it
  int64_t floats = 0;
};
/// The buffers of both programs that get a copy. Buffers that share memory are one, as large
/// as the larger of them.
std::vector<Copied> copied_buffers(const Program& program, const Program& forward) {
  std::map<int, Copied> shared;
  std::vector<Copied> all;
  const auto floats = [](const Buffer& buffer) {
    return buffer.bytes / static_cast<int64_t>(sizeof(float));
  };
  for (int b : read_parameters(program)) shared[b] = {b, false, floats(program.buffers[b])};
  for (int b : read_parameters(forward)) {
    const Buffer& buffer = forward.buffers[b];
    if (buffer.same_as < 0) {
      all.push_back({b, true, floats(buffer)});
    } else {
      Copied& copied =
          shared.try_emplace(buffer.same_as, Copied{buffer.same_as, false, 0}).first->second;
      copied.floats = std::max(copied.floats, floats(buffer));
    }
  }
  for (const auto& [b, copied] : shared) all.push_back(copied);
  return all;
}

}  // namespace

LowCopies::LowCopies(const EngineParts& parts, const RankDevice& rank)
    : shape_(parts.training.shape),
      precision_(parts.training.job.numerics.precision),
      kernels_(rank.library->state) {
  const Program &program = parts.program(), &forward = parts.program(Which::kEvaluation);
  const int64_t all = bytes(program, forward, precision_);
  if (all == 0) return;
  arena_ = std::make_unique<Arena>(BufferKind::kParameter, static_cast<size_t>(all),
                                   parts.gauges.accounts, rank.device.get());
  for (const Copied& copied : copied_buffers(program, forward)) {
    const void* at =
        parts.state.memory->of(copied.forward ? Which::kEvaluation : Which::kSteps, copied.buffer);
    copies_[at] = {arena_->take(static_cast<size_t>(copy_bytes(copied.floats))).data(),
                   copied.floats};
  }
}

int64_t LowCopies::bytes(const Program& program, const Program& forward, Precision precision) {
  int64_t bytes = 0;
  if (precision != Precision::kFloat32)
    for (const Copied& copied : copied_buffers(program, forward))
      bytes += copy_bytes(copied.floats);
  return bytes;
}

void* LowCopies::of(const void* buffer) const {
  const auto found = copies_.find(buffer);
  return found == copies_.end() ? nullptr : found->second.memory;
}

void LowCopies::write(Stream stream, const Buffer& buffer, int unit, const void* memory) const {
  const auto found = copies_.find(memory);
  if (found == copies_.end()) return;

  const int64_t floats = buffer.range.empty() ? shape_.blocks[unit].unit_size : buffer.range.size();
  kernels_.cast(stream, static_cast<const float*>(memory), found->second.memory, floats,
                precision_);
}

void LowCopies::write_all(Stream stream) const {
  for (const auto& [memory, copy] : copies_)
    kernels_.cast(stream, static_cast<const float*>(memory), copy.memory, copy.floats, precision_);
}

}  // namespace tutti
