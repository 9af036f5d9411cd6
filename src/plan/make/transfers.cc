// A transfer is read off the instructions of one id on all ranks of its group: who reads a buffer there offers it, who
// writes one takes. The mesh says the rest: which data ranks contribute, in which order, and who owns which slice.
#include "plan/make/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace tutti {

namespace {

constexpr int64_t kFloat = sizeof(float);

/// Floats of the unit's gradient space that a buffer holds.
Range held(const Buffer& buffer) { return buffer.range.empty() ? Range{0, buffer.bytes / kFloat} : buffer.range; }

bool holds(const Buffer& buffer, Range range) {
  const Range own = held(buffer);
  return own.begin <= range.begin && range.end <= own.end && (range.end - own.begin) * kFloat <= buffer.bytes;
}

/// Bytes from the window's start to the float `at` of the unit.
int64_t window_place(const Buffer& buffer, int64_t at) {
  return buffer.window_offset + (at - held(buffer).begin) * kFloat;
}

[[noreturn]] void refuse(const Instruction& i, int rank, const std::string& what) {
  throw Error(fmt::format("rank {} {}: {}", rank, to_string(i), what));
}

}  // namespace

Range owned_slice(const MeshPlaces& places, int unit, int data) {
  const auto& slices = places.slices[unit];
  return slices[data % slices.size()];
}

Transfers::Transfers(const Plan& plan, const ModelShape& model, const MeshOptions& options)
    : plan_(plan),
      model_(model),
      options_(options),
      places_(mesh_places(model, options)),
      rounds_(sum_rounds(options.sums())),
      all_(plan.programs.size()),
      by_id_(plan.programs.size()) {
  std::iota(all_.begin(), all_.end(), 0);
  for (size_t r = 0; r < plan.programs.size(); ++r) {
    const Program& program = plan.programs[r];
    signalled_by_.emplace_back(program.events, std::pair{0, -1});
    for (int q = 0; q < static_cast<int>(program.queues.size()); ++q) {
      const auto& instructions = program.queues[q].instructions;
      for (int k = 0; k < static_cast<int>(instructions.size()); ++k) {
        by_id_[r].emplace(instructions[k].id, std::pair{q, k});
        if (instructions[k].signal >= 0) signalled_by_[r][instructions[k].signal] = {q, k};
      }
    }
  }
}

const Instruction* Transfers::find(int rank, uint32_t id) const {
  const auto it = by_id_[rank].find(id);
  if (it == by_id_[rank].end()) return nullptr;
  return &plan_.programs[rank].queues[it->second.first].instructions[it->second.second];
}

const std::vector<int>& Transfers::members(const Instruction& instruction) const {
  return instruction.group < 0 ? all_ : plan_.groups[instruction.group];
}

Range Transfers::slice_at(int rank, int unit) const {
  Coordinates place = options_.mesh.at(rank);
  const int data = std::exchange(place.data, 0);
  return place == places_.home(model_, unit) ? owned_slice(places_, unit, data) : Range{};
}

std::vector<Share> Transfers::shares_at(int rank, int unit) const {
  std::vector<Share> list;
  Coordinates place = options_.mesh.at(rank);
  place.data = 0;
  for (size_t b = 0; b < model_.blocks.size(); ++b) {
    if (model_.blocks[b].shares.empty() || places_.home(model_, static_cast<int>(b)) != place) continue;
    for (const Share& share : model_.blocks[b].shares) {
      if (share.unit == unit) list.push_back(share);
    }
  }
  return list;
}

Round Transfers::round_of(const Instruction& reduce) const {
  if (!places_.by_hosts(reduce.block)) return rounds_[reduce.round];
  const int data = options_.mesh.at(members(reduce).front()).data, together = places_.host_ranks;
  return reduce.round == 0 ? round_inside(options_.sums(), together, data / together)
                           : round_between(options_.sums(), together, data % together);
}

/// What the data ranks of `home` have for the floats `to`: it begins at float `from` of the gradient space.
SumSource Transfers::source(const Instruction& reduce, const Round& round, Range to, int64_t from,
                            Coordinates home) const {
  SumSource source{to, {}};
  const Range wanted{from, from + to.size()};
  for (const Contribution& contribution : round.contributions) {
    home.data = contribution.data_rank;
    const int rank = options_.mesh.rank(home);
    const Instruction* own = find(rank, reduce.id);
    if (own == nullptr) refuse(reduce, rank, "takes no part");
    // What a block writes apart from the owner's own gradient lies in the smaller of two buffers that have room for it.
    int64_t least = INT64_MAX;
    for (int b : own->reads) {
      const Buffer& buffer = plan_.programs[rank].buffers[b];
      if (holds(buffer, wanted)) least = std::min(least, buffer.bytes);
    }
    int left = contribution.partial;
    const Buffer* found = nullptr;
    for (int b : own->reads) {
      const Buffer& buffer = plan_.programs[rank].buffers[b];
      if (holds(buffer, wanted) && buffer.bytes == least && left-- == 0) found = &buffer;
    }
    if (found == nullptr) {
      refuse(reduce, rank,
             fmt::format("partial {} of floats [{}, {}) is in no buffer that it reads", contribution.partial,
                         wanted.begin, wanted.end));
    }
    if (!found->window) refuse(reduce, rank, fmt::format("'{}' is not in the window", found->name));
    source.terms.push_back({rank, window_place(*found, from)});
  }
  return source;
}

SumTransfer Transfers::sum(const Instruction& reduce) const {
  const int unit = reduce.block;
  SumTransfer transfer;
  transfer.id = reduce.id;
  transfer.name = fmt::format("reduce unit {} round {}", unit, reduce.round);
  transfer.ranks = members(reduce);
  transfer.unit = unit, transfer.round = reduce.round;
  transfer.by_hosts = places_.by_hosts(unit);
  transfer.rounds = transfer.by_hosts ? 2 : static_cast<int>(rounds_.size());
  transfer.levels = stack_levels(rounds_);
  for (int rank : transfer.ranks) {
    const bool of_host = transfer.by_hosts && !transfer.last();
    const int position = of_host ? options_.mesh.at(rank).data % places_.host_ranks : 0;
    transfer.slices.push_back(of_host ? places_.host_slice(unit, position) : slice_at(rank, unit));
  }
  const Round round = round_of(reduce);
  transfer.sums = round.sums;

  const BlockShape& block = model_.blocks[unit];
  transfer.sources.push_back(source(reduce, round, {0, block.unit_size}, 0, places_.home(model_, unit)));
  for (size_t p = 0; p < block.parameters.size(); ++p) {
    const ParameterShape& parameter = block.parameters[p];
    for (size_t e = 0; e < parameter.extra_gradients.size(); ++e) {
      const Share share{unit, static_cast<int>(p), static_cast<int>(e)};
      const auto uses = [&](const BlockShape& user) {
        return std::find(user.shares.begin(), user.shares.end(), share) != user.shares.end();
      };
      const auto user = std::find_if(model_.blocks.begin(), model_.blocks.end(), uses);
      if (user == model_.blocks.end()) throw Error(fmt::format("nobody uses '{}' as user {}", parameter.name, e));
      const int user_block = static_cast<int>(user - model_.blocks.begin());
      transfer.sources.push_back(source(reduce, round, {parameter.offset, parameter.offset + parameter.size},
                                        parameter.extra_gradients[e], places_.home(model_, user_block)));
    }
  }
  return transfer;
}

/// Whether the unit's Update on that rank comes before the Gather there: by queue order or by what is waited for.
bool Transfers::follows_update(int rank, const Instruction& gather) const {
  const auto& queues = plan_.programs[rank].queues;
  const auto it = by_id_[rank].find(gather.id);
  if (it == by_id_[rank].end()) return false;
  std::vector<int> until(queues.size(), 0), seen(queues.size(), 0);  // how many of each queue come before
  until[it->second.first] = it->second.second;
  const auto take_waits = [&](const Instruction& i) {
    for (int event : i.waits) {
      const auto& [queue, index] = signalled_by_[rank][event];
      until[queue] = std::max(until[queue], index + 1);
    }
  };
  take_waits(*find(rank, gather.id));
  for (bool more = true; more;) {
    more = false;
    for (size_t q = 0; q < queues.size(); ++q) {
      for (; seen[q] < until[q]; ++seen[q], more = true) {
        const Instruction& i = queues[q].instructions[seen[q]];
        if (i.op == Op::kUpdate && i.block == gather.block) return true;
        take_waits(i);
      }
    }
  }
  return false;
}

/// What a rank takes into one of the buffers it writes: each piece from those of its replica that hold it.
void Transfers::copy_into(CopyTransfer& transfer, const Instruction& own, int rank, int write) const {
  const Mesh& mesh = options_.mesh;
  const Coordinates home = places_.home(model_, own.block);
  const int shards = static_cast<int>(places_.slices[own.block].size());
  const int first = mesh.at(rank).data / shards * shards;
  const Buffer& target = plan_.programs[rank].buffers[own.writes[write]];
  for (const auto& [range, place] : pieces_of(target, own.block, rank)) {
    for (int shard = 0; shard < shards; ++shard) {
      const Range part = overlap(range, owned_slice(places_, own.block, first + shard));
      if (part.empty()) continue;
      const int from = mesh.rank({first + shard, home.tensor, home.pipeline});
      const Instruction* offer = find(from, own.id);
      if (offer == nullptr || offer->reads.empty()) refuse(own, from, "reads no slice");
      if (from == rank && offer->reads[0] == own.writes[write]) continue;
      const Buffer& slice = plan_.programs[from].buffers[offer->reads[0]];
      if (!slice.window) refuse(own, from, fmt::format("'{}' is not in the window", slice.name));
      if (!holds(slice, part)) {
        refuse(own, from, fmt::format("'{}' does not hold floats [{}, {})", slice.name, part.begin, part.end));
      }
      transfer.copies.push_back({from, rank, window_place(slice, part.begin),
                                 (place + part.begin - range.begin - held(target).begin) * kFloat, part.size() * kFloat,
                                 write});
    }
  }
}

std::vector<std::pair<Range, int64_t>> Transfers::pieces_of(const Buffer& target, int unit, int rank) const {
  const BlockShape& block = model_.blocks[unit];
  if (target.range.empty() || target.range.begin < block.unit_size) {
    const Range range = overlap(held(target), {0, block.unit_size});
    return {{range, range.begin}};
  }
  std::vector<std::pair<Range, int64_t>> pieces;
  for (const Share& share : shares_at(rank, unit)) {
    const ParameterShape& parameter = block.parameters[share.parameter];
    const int64_t place = parameter.extra_gradients[share.extra];
    if (holds(target, {place, place + parameter.size})) {
      pieces.push_back({{parameter.offset, parameter.offset + parameter.size}, place});
    }
  }
  return pieces;
}

CopyTransfer Transfers::copy(const Instruction& gather) const {
  const int unit = gather.block;
  CopyTransfer transfer;
  transfer.id = gather.id;
  transfer.unit = unit;
  transfer.ranks = members(gather);
  transfer.updated = follows_update(options_.mesh.rank(places_.home(model_, unit)), gather);
  const char* what = "parameters";

  for (int rank : transfer.ranks) {
    const Instruction* own = find(rank, gather.id);
    if (own == nullptr) refuse(gather, rank, "takes no part");
    for (size_t w = 0; w < own->writes.size(); ++w) {
      if (plan_.programs[rank].buffers[own->writes[w]].kind == BufferKind::kGradient) what = "gradients";
      copy_into(transfer, *own, rank, static_cast<int>(w));
    }
  }
  transfer.name = fmt::format("gather {} of unit {}", what, unit);
  return transfer;
}

SumTransfer sum_transfer(const Plan& plan, const ModelShape& model, const MeshOptions& options,
                         const Instruction& reduce) {
  return Transfers(plan, model, options).sum(reduce);
}

CopyTransfer copy_transfer(const Plan& plan, const ModelShape& model, const MeshOptions& options,
                           const Instruction& gather) {
  return Transfers(plan, model, options).copy(gather);
}

int64_t level_floats(const SumTransfer& transfer, int member) {
  const Range slice = transfer.slices[member];
  int64_t floats = slice.size();
  for (size_t s = 1; transfer.rounds > 1 && s < transfer.sources.size(); ++s) {
    floats += overlap(slice, transfer.sources[s].to).size();
  }
  return floats;
}

int64_t slice_offset(const SumTransfer& transfer, const Instruction& reduce, int rank) {
  const bool in_place = !reduce.reads.empty() && !reduce.writes.empty() && reduce.reads[0] == reduce.writes[0];
  const auto member = std::find(transfer.ranks.begin(), transfer.ranks.end(), rank) - transfer.ranks.begin();
  return in_place ? transfer.slices.at(member).begin : 0;
}

int64_t exchanged_bytes(const OutputShape& output, const Instruction& exchange) {
  if (exchange.part != Part::kInput) return output.bytes;
  return exchange.exchange == Exchange::kScatter ? output.read_bytes / output.read_element_bytes * kFloat
                                                 : output.read_bytes;
}

namespace {

/// Of an Exchange, from one tensor rank to another.
int64_t link_bytes(const ModelShape& model, const MeshOptions& options, const Instruction& i, int from, int to) {
  const auto of = [&](int rank) { return lanes_of(options.mesh.at(rank).tensor, options.mesh.tensor, model.columns); };
  const int64_t tensor = exchanged_bytes(model.blocks[i.block].segments[i.segment].outputs[i.output], i);
  if (i.exchange == Exchange::kGather) return of(from).size() * tensor;
  return static_cast<int64_t>(subtrees(of(from), model.columns).size()) * (tensor / model.columns) * of(to).size();
}

}  // namespace

LinkBytes link_bytes(const Plan& plan, const ModelShape& model, const MeshOptions& options) {
  const Transfers transfers(plan, model, options);
  LinkBytes bytes(plan.programs.size(), std::vector<int64_t>(plan.programs.size(), 0));
  for (const Program& program : plan.programs) {
    for (const Queue& queue : program.queues) {
      for (const Instruction& i : queue.instructions) {
        if (i.op == Op::kSend) bytes[program.rank][i.peer] += i.bytes;
        if (i.op == Op::kExchange) {
          for (int to : transfers.members(i)) {
            if (to != program.rank) bytes[program.rank][to] += link_bytes(model, options, i, program.rank, to);
          }
        }
        const bool first = transfers.members(i).front() == program.rank;  // counts for all
        if (i.op == Op::kReduce && first) {
          const SumTransfer sum = transfers.sum(i);
          for (size_t m = 0; m < sum.ranks.size(); ++m) {
            for (const SumSource& source : sum.sources) {
              const int64_t taken = overlap(sum.slices[m], source.to).size() * kFloat;
              for (const auto& term : source.terms) {
                if (term.rank != sum.ranks[m]) bytes[term.rank][sum.ranks[m]] += taken;
              }
            }
          }
        }
        if (i.op == Op::kGather && first) {
          for (const auto& copy : transfers.copy(i).copies) {
            if (copy.from != copy.to) bytes[copy.from][copy.to] += copy.bytes;
          }
        }
      }
    }
  }
  return bytes;
}

int64_t link_bytes(const Plan& plan, const ModelShape& model, const MeshOptions& options, int from, int to) {
  return link_bytes(plan, model, options)[from][to];
}

}  // namespace tutti
