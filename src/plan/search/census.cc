#include "plan/search/census.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

#include "plan/check/ordering.h"

namespace tutti {

namespace {

struct Work {
  Op op;
  int block = -1, segment = -1, lane = -1, micro = -1, bucket = -1;
  auto operator<=>(const Work&) const = default;
};

/// Coordinates that mean nothing for an op are left out, so that a second one of a kind is always seen.
Work work_of(const Instruction& i) {
  switch (i.op) {
    case Op::kLoad:
      return {i.op, -1, -1, i.lane, i.micro};
    case Op::kForward:
    case Op::kBackward:
      return {i.op, i.block, i.segment, i.lane, i.micro};
    case Op::kUpdate:
      return {i.op, i.block};
    case Op::kVote:
      return {i.op};
    default:
      return {i.op, -1, -1, -1, -1, i.bucket};
  }
}

std::string name_of(const Work& work) {
  Instruction i;
  i.op = work.op, i.block = work.block, i.segment = work.segment, i.lane = work.lane, i.micro = work.micro;
  i.bucket = work.bucket;
  return to_string(i);
}

std::vector<Work> wanted(const Plan& plan, const Program& program, const ModelShape& model, int micro_batches) {
  std::vector<Work> list;
  for (int lane = static_cast<int>(program.lanes.begin); lane < program.lanes.end; ++lane) {
    for (int micro = 0; micro < micro_batches; ++micro) {
      list.push_back({Op::kLoad, -1, -1, lane, micro});
      for (int b = 0; b < static_cast<int>(model.blocks.size()); ++b) {
        for (int s = 0; s < static_cast<int>(model.blocks[b].segments.size()); ++s) {
          for (Op op : {Op::kForward, Op::kBackward}) list.push_back({op, b, s, lane, micro});
        }
      }
    }
  }
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets.size()); ++bucket) {
    for (Op op : {Op::kAcquire, Op::kReduce, Op::kNorm, Op::kGather}) list.push_back({op, -1, -1, -1, -1, bucket});
    for (int unit : plan.buckets[bucket].units) list.push_back({Op::kUpdate, unit});
  }
  list.push_back({Op::kVote});
  return list;
}

}  // namespace

std::vector<std::string> check_census(const Plan& plan, const ModelShape& model, int micro_batches) {
  std::vector<std::string> faults;
  for (const Program& program : plan.programs) {
    std::map<Work, int> open;
    for (const Work& work : wanted(plan, program, model, micro_batches)) ++open[work];
    for (int q = 0; q < static_cast<int>(program.queues.size()); ++q) {
      const auto& instructions = program.queues[q].instructions;
      for (int k = 0; k < static_cast<int>(instructions.size()); ++k) {
        if (instructions[k].op == Op::kFold) continue;
        const auto it = open.find(work_of(instructions[k]));
        if (it == open.end()) {
          faults.push_back(name_of(plan, Place{program.rank, q, k}) + ": nothing asks for it");
        } else if (it->second-- <= 0) {
          faults.push_back(name_of(plan, Place{program.rank, q, k}) + ": is done a second time");
        }
      }
    }
    for (const auto& [work, left] : open) {
      if (left > 0) faults.push_back(fmt::format("rank {}: {} is missing", program.rank, name_of(work)));
    }
  }
  return faults;
}

}  // namespace tutti
