// Everything is taken once, before the first step, and sizes come from the plan alone: a kind that
// is larger than expected would show as an arena that runs out, and never as memory taken in the
// middle of a run.
#include "engine/program_memory.h"

#include <algorithm>
#include <utility>

#include "model/core/plan_runner.h"
#include "plan/ir/plan_memory.h"

namespace tutti {

namespace {

constexpr int64_t kPage = 4096;  // bytes; offloaded buffers begin on such borders

}  // namespace

int64_t aten_bytes(const Model& model, const Program& program) {
  // What the plan counts beyond what segments declare is ATen's.
  const std::vector<int64_t> declared = declared_bytes(model, program);
  int64_t bytes = 0;
  for (size_t b = 0; b < declared.size(); ++b)
    if (!program.buffers[b].offloaded && !program.buffers[b].lent)
      bytes += std::max<int64_t>(0, program.buffers[b].bytes - declared[b]);
  return bytes;
}

ProgramMemory::ProgramMemory(const Model& model, const Program& program, const Program& forward,
                             std::shared_ptr<Window> window, const std::string& tier_folder,
                             Accounts& accounts, Device* device)
    : device_(device),
      held_(std::move(window)),
      accounts_(accounts),
      memory_(program.buffers.size(), nullptr),
      forward_memory_(forward.buffers.size(), nullptr) {
  std::vector<int64_t> bytes = declared_bytes(model, program);
  // Evaluation runs between the steps, in their memory: a buffer that both programs name is as
  // large as the larger of the two, and buffers that only evaluation names are added.
  const std::vector<int64_t> forward_bytes = declared_bytes(model, forward);
  std::vector<int> missing;
  for (size_t b = 0; b < forward.buffers.size(); ++b) {
    const int same = forward.buffers[b].same_as;
    if (same < 0) {
      missing.push_back(static_cast<int>(b));
    } else if (!program.buffers[same].window) {
      bytes[same] = std::max(bytes[same], forward_bytes[b]);
    }
  }

  // How much of every kind the arenas take, and how much the window.
  std::vector<int64_t> total(kBufferKinds, 0), window_total(kBufferKinds, 0);
  for (size_t b = 0; b < program.buffers.size(); ++b)
    (program.buffers[b].window ? window_total : total)[static_cast<int>(program.buffers[b].kind)] +=
        bytes[b];
  for (int b : missing) total[static_cast<int>(forward.buffers[b].kind)] += forward_bytes[b];

  // The window is the transport's where it has one, or else memory of our own: transfers count
  // their offsets from it in any case. It is accounted as what is in it.
  if (const auto wanted = static_cast<size_t>(window_bytes(program)); wanted > 0) {
    if (held_ != nullptr) window_ = held_->bytes();
    if (window_.empty()) {
      arenas_.push_back(std::make_unique<Arena>(BufferKind::kMessage, wanted, uncounted_, device));
      window_ = arenas_.back()->take(wanted);
    }
    for (int kind = 0; kind < kBufferKinds; ++kind)
      if (window_total[kind] > 0) accounts.add(static_cast<BufferKind>(kind), window_total[kind]);
    window_bytes_ = window_total;
  }

  // One arena per kind.
  std::vector<Arena*> arena(kBufferKinds, nullptr);
  for (int kind = 0; kind < kBufferKinds; ++kind) {
    if (total[kind] == 0) continue;
    arenas_.push_back(
        std::make_unique<Arena>(static_cast<BufferKind>(kind), total[kind], accounts, device));
    arena[kind] = arenas_.back().get();
  }
  const auto take = [&](BufferKind kind, int64_t count) -> std::byte* {
    return count > 0 ? arena[static_cast<int>(kind)]->take(static_cast<size_t>(count)).data()
                     : nullptr;
  };

  // Every buffer of the steps gets its place: in the tier, in the window at the offset that the
  // plan gives, or in the arena of its kind.
  int64_t tier_bytes = 0;
  for (const Buffer& b : program.buffers) tier_bytes += b.offloaded ? align_up(b.bytes, kPage) : 0;
  std::byte* tier = tier_bytes > 0 ? make_tier(tier_folder, tier_bytes) : nullptr;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.offloaded) {
      memory_[b] = std::exchange(tier, tier + align_up(buffer.bytes, kPage));
      continue;
    }
    memory_[b] =
        buffer.window ? window_.data() + buffer.window_offset : take(buffer.kind, bytes[b]);
  }

  // Then those of evaluation.
  for (size_t b = 0; b < forward.buffers.size(); ++b)
    if (const int same = forward.buffers[b].same_as; same >= 0) forward_memory_[b] = memory_[same];
  for (int b : missing) forward_memory_[b] = take(forward.buffers[b].kind, forward_bytes[b]);
}

ProgramMemory::~ProgramMemory() {
  if (!pinned_.empty()) device_->give_back_pinned(pinned_);
  for (size_t kind = 0; kind < window_bytes_.size(); ++kind)
    accounts_.add(static_cast<BufferKind>(kind), -window_bytes_[kind]);
}

std::byte* ProgramMemory::make_tier(const std::string& folder, int64_t bytes) {
  if (device_ != nullptr)
    return (pinned_ = device_->take_pinned(static_cast<size_t>(bytes))).data();
  tier_ = std::make_unique<FileTier>(folder, bytes);
  return tier_->mapped().data();
}

void ProgramMemory::fetch(const std::byte* offloaded, std::span<std::byte> into) const {
  // A rank that holds no moments (its slices are empty, or the optimizer has none) has no tier.
  if (!into.empty()) tier_->read(offloaded - tier_->mapped().data(), into);
}

void ProgramMemory::evict(std::byte* offloaded, std::span<const std::byte> from) const {
  if (!from.empty()) tier_->write(offloaded - tier_->mapped().data(), from);
}

void ProgramMemory::forget_tier() const {
  if (tier_) tier_->forget();
}

}  // namespace tutti
