// Events are only made where the order of queues and earlier waits do not give the order already.
// Waiting for an instruction means waiting for all before it on its queue.
#include "plan/make/mesh_builder.h"

#include <algorithm>

#include "plan/ir/touched.h"

namespace tutti {

namespace {

// Bytes. Buffers are whole lines, windows begin on pages.
constexpr int64_t kLine = 256, kPage = 4096;

}  // namespace

MeshBuilder::MeshBuilder(int rank, const std::vector<QueueUse>& queues) {
  program_.rank = rank;
  for (QueueUse use : queues) {
    queue_of_use_[static_cast<size_t>(use)] = static_cast<int>(program_.queues.size());
    program_.queues.push_back({queue_name(use), {}, use});
  }
  waited_for_.assign(program_.queues.size(), std::vector<int>(program_.queues.size(), 0));
}

int MeshBuilder::add_buffer(Buffer buffer) {
  buffer.bytes = align_up(buffer.bytes, kLine);
  program_.buffers.push_back(std::move(buffer));
  history_.emplace_back();
  return static_cast<int>(program_.buffers.size()) - 1;
}

int MeshBuilder::add_buffer(std::string name, BufferKind kind, int64_t bytes, int unit) {
  Buffer buffer;
  buffer.name = std::move(name);
  buffer.kind = kind;
  buffer.bytes = bytes;
  buffer.unit = unit;
  return add_buffer(std::move(buffer));
}

int MeshBuilder::named(const std::string& name, BufferKind kind, int64_t bytes, int unit) {
  const auto [it, fresh] = names_.try_emplace(name, -1);
  if (fresh) it->second = add_buffer(name, kind, bytes, unit);

  // Those who use a buffer in turn may want different sizes; it grows to the largest.
  Buffer& b = program_.buffers[it->second];
  b.bytes = std::max(b.bytes, align_up(bytes, kLine));
  return it->second;
}

/// Makes an instruction wait for an earlier one, unless it is on the same queue, or its queue has
/// waited for that one or a later one of the other queue.
void MeshBuilder::wait_for(const Spot& earlier, int queue, Instruction& instruction) {
  if (earlier.queue < 0 || earlier.index < 0 || earlier.queue == queue ||
      earlier.index < waited_for_[queue][earlier.queue])
    return;
  Instruction& other = program_.queues[earlier.queue].instructions[earlier.index];
  if (other.signal < 0) other.signal = program_.events++;
  instruction.waits.push_back(other.signal);
  waited_for_[queue][earlier.queue] = earlier.index + 1;
}

void MeshBuilder::add(QueueUse use, Instruction instruction, QueueUse after) {
  const int queue = queue_of_use_[static_cast<size_t>(use)];
  if (instruction.id == 0) instruction.id = next_id_++;

  // What has to come before: the writer of what is read; the writer and all readers of
  // what is written.
  const Touched touched = touched_by(instruction);
  std::vector<Spot> earlier;
  if (after != QueueUse::kCompute) {
    const int other = queue_of_use_[static_cast<size_t>(after)];
    earlier.push_back({other, static_cast<int>(program_.queues[other].instructions.size()) - 1});
  }

  for (int b : touched.reads) earlier.push_back(history_[b].writer);
  for (int b : touched.writes) {
    earlier.push_back(history_[b].writer);
    earlier.insert(earlier.end(), history_[b].readers.begin(), history_[b].readers.end());
  }

  // The latest of a queue is waited for first: it stands for those before it, which then
  // need no event.
  std::sort(earlier.begin(), earlier.end(),
            [](const Spot& a, const Spot& b) { return a.index > b.index; });
  for (const Spot& access : earlier) wait_for(access, queue, instruction);

  // From here on, this instruction is the one to wait for. One reader per queue is enough: its last
  // one stands for the others.
  const Spot here{queue, static_cast<int>(program_.queues[queue].instructions.size())};
  for (int b : touched.reads) {
    auto& readers = history_[b].readers;
    std::erase_if(readers, [&](const Spot& a) { return a.queue == queue; });
    readers.push_back(here);
  }
  for (int b : touched.writes) history_[b] = {here, {}};
  program_.queues[queue].instructions.push_back(std::move(instruction));
}

Program MeshBuilder::finish() {
  int64_t offset = 0;
  for (Buffer& b : program_.buffers) {
    if (!b.window) continue;
    b.window_offset = offset;
    offset += align_up(b.bytes, kPage);
  }
  return std::move(program_);
}

}  // namespace tutti
