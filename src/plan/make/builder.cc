#include "plan/make/builder.h"

#include <algorithm>

namespace tutti {

namespace {

constexpr int64_t kLine = 256, kPage = 4096;  // bytes

bool listed(const std::vector<int>& list, int buffer) {
  return std::find(list.begin(), list.end(), buffer) != list.end();
}

void add_all(std::vector<int>& to, const std::vector<int>& buffers) {
  for (int b : buffers)
    if (b >= 0 && !listed(to, b)) to.push_back(b);
}

}  // namespace

Accesses accesses_of(const Instruction& i) {
  Accesses a;
  add_all(a.reads, i.reads);
  add_all(a.writes, i.writes);
  for (const Add& add : i.adds) {
    add_all(a.reads, {add.into, add.from});
    add_all(a.writes, {add.into});
  }
  const Flow& f = i.flow;
  add_all(a.reads, f.in);
  for (const UnitBuffer& u : f.parameters) add_all(a.reads, {u.buffer});
  switch (i.op) {
    case Op::kExchange:
      add_all(a.writes, f.out);
      if (i.exchange == Exchange::kScatter) add_all(a.writes, f.in);
      add_all(a.writes, {f.work});
      break;
    case Op::kForward:
      for (int out : f.out)
        if (!listed(f.in, out)) add_all(a.writes, {out});
      add_all(a.writes, {f.saved, f.work});
      break;
    case Op::kBackward:
      add_all(a.reads, f.out);
      add_all(a.reads, f.grad_out);
      add_all(a.writes, f.grad_in);
      for (const UnitBuffer& u : f.gradients) add_all(a.writes, {u.buffer});
      add_all(a.reads, {f.saved});
      add_all(i.part == Part::kInput ? a.writes : a.reads, {f.deferred});
      add_all(a.writes, {f.work});
      break;
    default:
      break;
  }
  return a;
}

MeshProgram::MeshProgram(int rank, bool overlap, bool pipeline, bool back, bool tier, bool shared) {
  program_.rank = rank;
  program_.queues.push_back({"compute", {}});
  queue_of_use_.assign(kUses + kBack, 0);
  const auto make = [&](int use, const char* name) {
    queue_of_use_[use] = static_cast<int>(program_.queues.size());
    program_.queues.push_back({name, {}});
  };
  if (overlap) make(kData, "data");
  if (pipeline) {
    make(kActivationsIn, "activations in");
    make(kActivationsOut, "activations out");
    make(kGradientsIn, "gradients in");
    make(kGradientsOut, "gradients out");
  }
  if (back) {
    make(kActivationsIn + kBack, "activations in, back");
    make(kActivationsOut + kBack, "activations out, back");
    make(kGradientsIn + kBack, "gradients in, back");
    make(kGradientsOut + kBack, "gradients out, back");
  }
  if (tier) make(kTier, "tier");
  if (shared) make(kShared, "shared");
  waited_for_.assign(program_.queues.size(), std::vector<int>(program_.queues.size(), 0));
}

int MeshProgram::add_buffer(Buffer buffer) {
  buffer.bytes = align_up(buffer.bytes, kLine);
  program_.buffers.push_back(std::move(buffer));
  history_.emplace_back();
  return static_cast<int>(program_.buffers.size()) - 1;
}

int MeshProgram::add_buffer(std::string name, BufferKind kind, int64_t bytes, int unit) {
  Buffer buffer;
  buffer.name = std::move(name);
  buffer.kind = kind;
  buffer.bytes = bytes;
  buffer.unit = unit;
  return add_buffer(std::move(buffer));
}

int MeshProgram::named(const std::string& name, BufferKind kind, int64_t bytes, int unit) {
  const auto [it, fresh] = names_.try_emplace(name, -1);
  if (fresh) it->second = add_buffer(name, kind, bytes, unit);
  Buffer& b = program_.buffers[it->second];
  b.bytes = std::max(b.bytes, align_up(bytes, kLine));
  return it->second;
}

void MeshProgram::wait_for(const Access& earlier, int queue, Instruction& instruction) {
  if (earlier.queue < 0 || earlier.index < 0 || earlier.queue == queue ||
      earlier.index < waited_for_[queue][earlier.queue])
    return;
  Instruction& other = program_.queues[earlier.queue].instructions[earlier.index];
  if (other.signal < 0) other.signal = program_.events++;
  instruction.waits.push_back(other.signal);
  waited_for_[queue][earlier.queue] = earlier.index + 1;
}

void MeshProgram::add(int use, Instruction instruction, int behind) {
  const int queue = queue_of_use_[use];
  if (instruction.id == 0) instruction.id = next_id_++;
  const Accesses touched = accesses_of(instruction);
  std::vector<Access> earlier;
  if (behind >= 0) {
    const int other = queue_of_use_[behind];
    earlier.push_back({other, static_cast<int>(program_.queues[other].instructions.size()) - 1});
  }
  for (int b : touched.reads) earlier.push_back(history_[b].writer);
  for (int b : touched.writes) {
    earlier.push_back(history_[b].writer);
    earlier.insert(earlier.end(), history_[b].readers.begin(), history_[b].readers.end());
  }
  // The latest of a queue is waited for first: it stands for those before it.
  std::sort(earlier.begin(), earlier.end(), [](const Access& a, const Access& b) { return a.index > b.index; });
  for (const Access& access : earlier) wait_for(access, queue, instruction);
  const Access here{queue, static_cast<int>(program_.queues[queue].instructions.size())};
  for (int b : touched.reads) {
    auto& readers = history_[b].readers;
    std::erase_if(readers, [&](const Access& a) { return a.queue == queue; });
    readers.push_back(here);
  }
  for (int b : touched.writes) history_[b] = {here, {}};
  program_.queues[queue].instructions.push_back(std::move(instruction));
}

Program MeshProgram::finish() {
  int64_t offset = 0;
  for (Buffer& b : program_.buffers) {
    if (!b.window) continue;
    b.window_offset = offset;
    offset += align_up(b.bytes, kPage);
  }
  return std::move(program_);
}

}  // namespace tutti
