// Small damage to the program of one rank of a mesh: to an instruction, to its place, or to a
// buffer.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "unit/plan/dice.h"

namespace tutti::test {

/// The dice must outlive it.
class ProgramDamage {
 public:
  explicit ProgramDamage(Dice& dice) : dice_(dice) {}

  /// In one place; empty when the drawn damage cannot be done there.
  std::string damage(Plan& plan) {
    Program& program = dice_.pick(plan.programs);
    Queue& queue = dice_.pick(program.queues);
    if (queue.instructions.empty()) return "";
    const size_t at = dice_.below(queue.instructions.size());
    Instruction& i = queue.instructions[at];
    const std::string where =
        fmt::format("rank {} {} #{} {}", program.rank, queue.name, at, to_string(i));
    const std::string what = dice_.below(8) == 0   ? damage_buffer(program)
                             : dice_.below(4) == 0 ? damage_order(program, queue, at)
                             : dice_.below(3) == 0 ? damage_flow(program, i)
                             : dice_.below(2) == 0 ? damage_operands(plan, program, i)
                                                   : damage_words(plan, program, i);
    return what.empty() ? "" : what + " of " + where;
  }

 private:
  std::string damage_order(Program& program, Queue& queue, size_t at) {
    auto& list = queue.instructions;
    Instruction& i = list[at];
    switch (dice_.below(9)) {
      case 0:
        dice_.erase(list, at);
        return "drop";
      case 1:
        if (at + 1 == list.size()) return "";
        std::swap(list[at], list[at + 1]);
        return "swap with the next";
      case 2: {
        const size_t other = dice_.below(list.size());
        if (other == at) return "";
        std::swap(list[at], list[other]);
        return fmt::format("swap with #{}", other);
      }
      case 3: {
        Instruction twin = i;
        twin.id = 200000;
        twin.signal = -1;
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(dice_.below(list.size())), twin);
        return "a twin";
      }
      case 4:
        if (i.waits.empty()) return "";
        dice_.erase(i.waits, dice_.below(i.waits.size()));
        return "drop a wait";
      case 5:
        if (i.waits.empty()) return "";
        return dice_.retarget(dice_.pick(i.waits), 0, program.events, "a wait");
      case 6:
        if (i.signal < 0) return "";
        i.signal = -1;
        return "drop the signal";
      case 7: {
        const Instruction moved = i;
        Queue& other = dice_.pick(program.queues);
        if (&other == &queue) return "";
        dice_.erase(list, at);
        other.instructions.insert(
            other.instructions.begin() +
                static_cast<std::ptrdiff_t>(dice_.below(other.instructions.size() + 1)),
            moved);
        return "move to queue " + other.name;
      }
      default:
        return dice_.retarget(i.signal, 0, program.events + 1, "the signal");
    }
  }

  std::string damage_words(Plan& plan, Program& program, Instruction& i) {
    const int buffers = static_cast<int>(program.buffers.size());
    switch (dice_.below(14)) {
      case 0:
        return i.parcel < 0 ? ""
                            : dice_.retarget(i.parcel, 0, static_cast<int>(plan.parcels.size()),
                                             "the parcel");
      case 1: {
        const size_t transfers = i.op == Op::kReduce ? plan.sums.size() : plan.copies.size();
        return i.transfer < 0
                   ? ""
                   : dice_.retarget(i.transfer, 0, static_cast<int>(transfers), "the transfer");
      }
      case 2: {
        if (i.adds.empty()) return "";
        Add& a = dice_.pick(i.adds);
        const uint64_t kind = dice_.below(4);
        if (kind == 0) std::swap(a.into, a.from);
        if (kind == 1) dice_.erase(i.adds, dice_.below(i.adds.size()));
        if (kind == 2)
          return dice_.retarget(dice_.below(2) == 0 ? a.into : a.from, 0, buffers, "an addition");
        if (kind == 3) {
          if (i.adds.size() < 2) return "";
          std::swap(i.adds[0], i.adds[1]);
        }
        return "damage an addition";
      }
      case 3:
        return i.block < 0 ? "" : dice_.retarget(i.block, 0, 8, "the block");
      case 4:
        return i.segment < 0 ? "" : dice_.retarget(i.segment, 0, 3, "the segment");
      case 5:
        return i.lane < 0 ? "" : dice_.retarget(i.lane, 0, 4, "the lane");
      case 6:
        return i.micro < 0 ? "" : dice_.retarget(i.micro, 0, 3, "the micro-batch");
      case 7:
        return i.round < 0 ? "" : dice_.retarget(i.round, 0, 3, "the round");
      case 8:
        return i.peer < 0
                   ? ""
                   : dice_.retarget(i.peer, 0, static_cast<int>(plan.programs.size()), "the peer");
      case 9:
        return i.group < 0 ? ""
                           : dice_.retarget(i.group, -1, static_cast<int>(plan.groups.size()) + 1,
                                            "the group");
      case 10:
        return i.output < 0 ? "" : dice_.retarget(i.output, 0, 3, "the output");
      case 11:
        if (i.bytes == 0) return "";
        i.bytes = dice_.below(2) == 0 ? i.bytes / 2 : i.bytes + 256;
        return "resize what travels";
      case 12:
        i.id += static_cast<uint32_t>(1 + dice_.below(3));
        return "another id";
      default: {
        if (i.op == Op::kExchange) {
          i.exchange = static_cast<Exchange>(dice_.below(3));
          return "another exchange";
        }
        if (i.op == Op::kBackward && dice_.below(2) == 0) {
          i.part = static_cast<Part>(
              (static_cast<int>(i.part) + 1 + static_cast<int>(dice_.below(2))) % 3);
          return "another part";
        }
        if (i.op != Op::kForward && i.op != Op::kBackward) return "";
        i.again = !i.again;
        return "again or not";
      }
    }
  }

  std::string damage_operands(const Plan& plan, const Program& program, Instruction& i) {
    if (i.operands.empty()) return "";
    const size_t at = dice_.below(i.operands.size());
    Operand& operand = i.operands[at];
    const std::string name = fmt::format("operand {} ({})", at, role_name(operand.role));
    const int ranks = static_cast<int>(plan.programs.size());
    switch (dice_.below(10)) {
      case 0:
        dice_.erase(i.operands, at);
        return "drop " + name;
      case 1:
        i.operands.push_back(Operand(operand));
        return "repeat " + name;
      case 2:
        if (i.operands.size() < 2) return "";
        std::swap(operand, i.operands[at == 0 ? 1 : 0]);
        return "swap " + name;
      case 3:
        return dice_.another(operand.role, kRoles, "the role of " + name);
      case 4:
        return dice_.another(operand.access, 3, "the access of " + name);
      case 5:
        return dice_.retarget(operand.unit, -1, 9, "the unit of " + name);
      case 6:
        return dice_.shift(operand.range, name);
      case 7:
        return dice_.retarget(operand.rank, -1, ranks + 1, "the rank of " + name);
      default:
        return dice_.retarget(operand.buffer, 0, static_cast<int>(program.buffers.size()),
                              "the buffer of " + name);
    }
  }

  std::string damage_flow(const Program& program, Instruction& i) {
    const int buffers = static_cast<int>(program.buffers.size());
    std::vector<int*> all;
    for (auto* list : {&i.flow.in, &i.flow.out, &i.flow.grad_in, &i.flow.grad_out})
      for (int& b : *list) all.push_back(&b);
    for (int* b : {&i.flow.saved, &i.flow.deferred, &i.flow.work})
      if (*b >= 0) all.push_back(b);
    for (auto* list : {&i.flow.parameters, &i.flow.gradients})
      for (UnitBuffer& u : *list) all.insert(all.end(), {&u.buffer, &u.unit});
    if (all.empty()) return "";
    if (i.flow.gradients.size() > 1 && dice_.below(6) == 0) {
      std::swap(i.flow.gradients[0], i.flow.gradients[1]);
      return "swap gradients";
    }
    if (!i.flow.in.empty() && dice_.below(10) == 0) {
      i.flow.in.pop_back();
      return "drop an input";
    }
    if (i.op == Op::kForward && dice_.below(6) == 0) {
      const bool consumes = !i.flow.grad_in.empty();
      i.flow.grad_in = consumes ? std::vector<int>{} : i.flow.in;
      return consumes ? "consume nothing" : "consume all inputs";
    }
    return dice_.retarget(*dice_.pick(all), -1, buffers + 1, "a buffer of the flow");
  }

  std::string damage_buffer(Program& program) {
    Buffer& b = dice_.pick(program.buffers);
    const std::string name = fmt::format("'{}' for the program", b.name);
    switch (dice_.below(11)) {
      case 0:
        b.bytes /= 2;
        return "halve " + name;
      case 1:
        b.bytes += 256;
        return "enlarge " + name;
      case 2:
        return b.range.empty() ? "" : dice_.shift(b.range, name);
      case 3:
        if (b.placed.empty()) return "";
        return dice_.shift(dice_.pick(b.placed).range, "a place in " + name);
      case 4:
        if (b.placed.empty()) return "";
        dice_.pick(b.placed).at += 64;
        return "move a place in " + name;
      case 5:
        if (!b.window) return "";
        b.window = false;
        return "close the window of " + name;
      case 6:
        if (!b.window) return "";
        b.window_offset = static_cast<int64_t>(dice_.below(64)) * 4096;
        return "move " + name;
      case 7:
        return b.level < 0 ? "" : dice_.retarget(b.level, 0, 3, "the level of " + name);
      case 8:
        b.lent = !b.lent;
        return "lend or not " + name;
      case 9:
        return dice_.another(b.kind, kBufferKinds, "the kind of " + name);
      default:
        return b.unit < 0 ? "" : dice_.retarget(b.unit, 0, 8, "the unit of " + name);
    }
  }

  Dice& dice_;
};

}  // namespace tutti::test
