#include "model/wiring.h"

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"

namespace tutti {

namespace {

int find_border(const std::vector<Border>& borders, const std::string& name) {
  for (size_t i = 0; i < borders.size(); ++i)
    if (borders[i].name == name) return static_cast<int>(i);
  return -1;
}

bool same(const Border& a, const Border& b) { return a.dims == b.dims && a.type == b.type; }

void name_faults(const Model& model, std::vector<std::string>& faults) {
  std::set<std::string> blocks;
  for (const Block& block : model.blocks) {
    if (!blocks.insert(block.name).second) faults.push_back(fmt::format("two blocks are named {}", block.name));
    if (block.segments.empty()) faults.push_back(fmt::format("block {} has no segment", block.name));
    std::set<std::string> names;
    for (const Parameter& p : block.parameters) {
      if (!names.insert(p.name).second)
        faults.push_back(fmt::format("block {} has two parameters {}", block.name, p.name));
      for (int64_t d : p.dims)
        if (d <= 0) faults.push_back(fmt::format("parameter {}.{} has a dim of {}", block.name, p.name, d));
    }
  }
}

void share_faults(const Model& model, std::vector<std::string>& faults) {
  const auto owner = owners(model);
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (size_t i = 0; i < model.blocks[b].parameters.size(); ++i) {
      const Parameter& p = model.blocks[b].parameters[i];
      const Owner& o = owner[b][i];
      if (!p.shared_with.empty() &&
          (p.role != Role::kTrained ||
           (o.block >= 0 && model.blocks[o.block].parameters[o.parameter].role != Role::kTrained)))
        faults.push_back(fmt::format("parameter {}.{} is a buffer shared with {}; buffers cannot be shared",
                                     model.blocks[b].name, p.name, p.shared_with));
      if (o.block < 0)
        faults.push_back(fmt::format("parameter {}.{} is shared with {}, which no earlier block owns",
                                     model.blocks[b].name, p.name, p.shared_with));
      else if (model.blocks[o.block].parameters[o.parameter].dims != p.dims)
        faults.push_back(fmt::format("parameter {}.{} is [{}], but {} is [{}]", model.blocks[b].name, p.name,
                                     fmt::join(p.dims, ", "), p.shared_with,
                                     fmt::join(model.blocks[o.block].parameters[o.parameter].dims, ", ")));
    }
}

void border_faults(const Model& model, std::vector<std::string>& faults) {
  const auto segments = wire(model);
  for (size_t s = 0; s < segments.size(); ++s) {
    const SegmentWiring& w = segments[s];
    const Block& block = model.blocks[w.block];
    const std::string where = fmt::format("block {}, segment {}", block.name, block.segments[w.segment]->name());
    std::set<std::string> names;
    for (const Border& out : w.outputs)
      if (!names.insert(out.name).second) faults.push_back(fmt::format("{} has two outputs {}", where, out.name));
    names.clear();
    for (size_t i = 0; i < w.inputs.size(); ++i) {
      const Border& in = w.inputs[i];
      if (!names.insert(in.name).second) faults.push_back(fmt::format("{} has two inputs {}", where, in.name));
      if (w.sources[i].index < 0) {
        faults.push_back(
            fmt::format("{} wants {}, which neither the segment before nor the data offers", where, in.name));
        continue;
      }
      const Border& from =
          w.sources[i].data ? model.data[w.sources[i].index] : segments[s - 1].outputs[w.sources[i].index];
      if (!same(in, from))
        faults.push_back(fmt::format("{} wants {}, but gets {}", where, to_string(in), to_string(from)));
    }
  }
  const Border loss{"loss", {2}, at::kDouble};
  if (segments.empty() || segments.back().outputs.empty() || segments.back().outputs.back().name != loss.name ||
      !same(segments.back().outputs.back(), loss))
    faults.push_back(fmt::format("the last segment's outputs must end with {}: sum and count", to_string(loss)));
}

}  // namespace

std::vector<SegmentWiring> wire(const Model& model) {
  std::vector<SegmentWiring> all;
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (size_t s = 0; s < model.blocks[b].segments.size(); ++s) {
      const Segment& segment = *model.blocks[b].segments[s];
      SegmentWiring w{static_cast<int>(b), static_cast<int>(s), segment.inputs(), segment.outputs(), {}, {}};
      for (const Border& in : w.inputs) {
        Source source;
        if (!all.empty()) source.index = find_border(all.back().outputs, in.name);
        if (source.index < 0) source = {true, find_border(model.data, in.name)};
        w.wanted.push_back(!source.data && floating(in));
        w.sources.push_back(source);
      }
      all.push_back(std::move(w));
    }
  return all;
}

std::vector<std::vector<Owner>> owners(const Model& model) {
  std::vector<std::vector<Owner>> all(model.blocks.size());
  std::vector<std::vector<int>> users(model.blocks.size());  // of each parameter so far
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    int own = 0;
    const auto& parameters = model.blocks[b].parameters;
    users[b].resize(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      Owner owner;
      if (parameters[i].shared_with.empty()) {
        owner = {static_cast<int>(b), static_cast<int>(i), own++, -1};
      } else {
        for (size_t o = 0; o < b && owner.block < 0; ++o)
          for (size_t j = 0; j < model.blocks[o].parameters.size() && owner.block < 0; ++j)
            if (model.blocks[o].parameters[j].shared_with.empty() &&
                parameters[i].shared_with == model.blocks[o].name + "/" + model.blocks[o].parameters[j].name)
              owner = {static_cast<int>(o), static_cast<int>(j), all[o][j].own_index, users[o][j]++};
      }
      all[b].push_back(owner);
    }
  }
  return all;
}

std::vector<std::string> model_faults(const Model& model) {
  std::vector<std::string> faults;
  name_faults(model, faults);
  share_faults(model, faults);
  border_faults(model, faults);
  return faults;
}

void check_thread_ranks(const Model& model) {
  std::vector<std::string> names;
  for (const Block& block : model.blocks)
    if (std::any_of(block.segments.begin(), block.segments.end(), [](const auto& s) { return s->draws(); }))
      names.push_back(block.name);
  if (!names.empty())
    throw Error(
        fmt::format("block {} draws from torch's generator, which ranks that are threads would share; "
                    "use layout.workers = \"process\"",
                    fmt::join(names, ", ")));
}

int64_t border_bytes(const Border& border) {
  return std::accumulate(border.dims.begin(), border.dims.end(), static_cast<int64_t>(c10::elementSize(border.type)),
                         std::multiplies<>());
}

bool floating(const Border& border) { return c10::isFloatingType(border.type); }

std::string to_string(const Border& border) {
  return fmt::format("{} {} [{}]", border.name, c10::toString(border.type), fmt::join(border.dims, ", "));
}

}  // namespace tutti
