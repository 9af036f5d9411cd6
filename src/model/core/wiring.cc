// Resolves borders and shared parameters into indices, and finds every fault of a model at once.
// Faults are collected instead of thrown one by one, so that an author sees all of them in one run.
#include "model/core/wiring.h"

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

bool same_output(const Border& a, const Border& b) {
  return a.name == b.name && same(a, b) && a.exchange == b.exchange && a.same_as == b.same_as;
}

// Whether input `in` is what output `from` becomes after its exchange. Exchanges move elements and
// do not know dims, so for gathered and scattered outputs only the counts must agree.
bool fits(const Border& in, const Border& from, int columns) {
  switch (from.exchange) {
    case Exchange::kNone:
      return same(in, from);
    case Exchange::kGather:
      return in.type == from.type && elements(in) == columns * elements(from);
    case Exchange::kScatter:
      return floating(in) && columns * elements(in) == elements(from);
  }
  return false;
}

// How a message names what an output becomes after its exchange.
std::string offered(const Border& border, int columns) {
  if (border.exchange == Exchange::kNone) return to_string(border);
  return fmt::format(
      "{} {} {} columns", to_string(border),
      border.exchange == Exchange::kGather ? "gathered from" : "summed and scattered over",
      columns);
}

std::string name_of(const Model& model, const SegmentWiring& w) {
  const Block& block = model.blocks[w.block];
  return fmt::format("block {}, segment {}", block.name, block.segments[w.segment]->name());
}

bool columns_divide(const Model& model) {
  return model.columns >= 1 && model.blocks.size() % static_cast<size_t>(model.columns) == 0;
}

// The columns of a layer are one computation cut into parts: they must have the same segments and
// borders, since one exchange serves them all.
void column_faults(const Model& model, std::vector<std::string>& faults) {
  const auto columns = static_cast<size_t>(model.columns);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const Block &block = model.blocks[b], &first = model.blocks[b - b % columns];
    if (block.segments.size() != first.segments.size()) {
      faults.push_back(fmt::format("block {} has {} segments, but {} next to it has {}", block.name,
                                   block.segments.size(), first.name, first.segments.size()));
      continue;
    }
    for (size_t s = 0; s < block.segments.size(); ++s) {
      const Segment &one = *block.segments[s], &other = *first.segments[s];
      const auto in = one.inputs(), other_in = other.inputs(), out = one.outputs(),
                 other_out = other.outputs();
      if (!std::equal(in.begin(), in.end(), other_in.begin(), other_in.end(), same_output) ||
          !std::equal(out.begin(), out.end(), other_out.begin(), other_out.end(), same_output))
        faults.push_back(fmt::format("block {}, segment {} has other borders than {} next to it",
                                     block.name, one.name(), first.name));
    }
  }
}

// Names are keys, of the checkpoint and of the first values, so they must be unique.
void name_faults(const Model& model, std::vector<std::string>& faults) {
  std::set<std::string> blocks;
  for (const Block& block : model.blocks) {
    if (!blocks.insert(block.name).second)
      faults.push_back(fmt::format("two blocks are named {}", block.name));
    if (block.segments.empty())
      faults.push_back(fmt::format("block {} has no segment", block.name));
    std::set<std::string> names;
    for (const Parameter& p : block.parameters) {
      if (!names.insert(p.name).second)
        faults.push_back(fmt::format("block {} has two parameters {}", block.name, p.name));
      for (int64_t d : p.dims)
        if (d <= 0)
          faults.push_back(fmt::format("parameter {}.{} has a dim of {}", block.name, p.name, d));
    }
  }
}

// A share must name an earlier block's own parameter of the same dims, and no buffer.
void share_faults(const Model& model, std::vector<std::string>& faults) {
  const auto owner = owners(model);
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (size_t i = 0; i < model.blocks[b].parameters.size(); ++i) {
      const Parameter& p = model.blocks[b].parameters[i];
      const Owner& o = owner[b][i];

      // Each user of a shared buffer would propose a value of its own, and nothing says how these
      // would be joined.
      if (!p.shared_with.empty() &&
          (p.role != Role::kTrained ||
           (o.block >= 0 && model.blocks[o.block].parameters[o.parameter].role != Role::kTrained)))
        faults.push_back(
            fmt::format("parameter {}.{} is a buffer shared with {}; buffers cannot be shared",
                        model.blocks[b].name, p.name, p.shared_with));

      if (o.block < 0)
        faults.push_back(
            fmt::format("parameter {}.{} is shared with {}, which no earlier block owns",
                        model.blocks[b].name, p.name, p.shared_with));
      else if (model.blocks[o.block].parameters[o.parameter].dims != p.dims)
        faults.push_back(
            fmt::format("parameter {}.{} is [{}], but {} is [{}]", model.blocks[b].name, p.name,
                        fmt::join(p.dims, ", "), p.shared_with,
                        fmt::join(model.blocks[o.block].parameters[o.parameter].dims, ", ")));
    }
}

// Every input must be offered by the segment before or by the data, in the form that it declares.
void input_faults(const Model& model, const std::vector<SegmentWiring>& segments,
                  const SegmentWiring& w, std::vector<std::string>& faults) {
  const std::string where = name_of(model, w);
  std::set<std::string> names;
  for (size_t i = 0; i < w.inputs.size(); ++i) {
    const Border& in = w.inputs[i];
    if (!names.insert(in.name).second)
      faults.push_back(fmt::format("{} has two inputs {}", where, in.name));
    if (w.sources[i].index < 0) {
      faults.push_back(fmt::format(
          "{} wants {}, which neither the segment before nor the data offers", where, in.name));
      continue;
    }

    // What is offered must be what is declared, after its exchange.
    const Border& from = w.sources[i].data ? model.data[w.sources[i].index]
                                           : segments[w.before].outputs[w.sources[i].index];
    if (!fits(in, from, model.columns))
      faults.push_back(fmt::format("{} wants {}, but gets {}", where, to_string(in),
                                   offered(from, model.columns)));
  }
}

// An output that is passed on is its input's buffer, and their gradients are one buffer, too. So it
// must have one reader, cross no exchange, and keep its type all the way.
void pass_on_fault(const Model& model, const std::vector<SegmentWiring>& segments,
                   const SegmentWiring& w, size_t index, std::vector<std::string>& faults) {
  const Border& out = w.outputs[index];
  if (out.same_as.empty()) return;
  const std::string where =
      fmt::format("{} passes {} on as {}", name_of(model, w), out.same_as, out.name);

  // Only the first fault is told of an output: the later questions suppose the earlier ones.
  const int input = w.same_as[index];
  if (input < 0)
    faults.push_back(where + ", but does not read it");
  else if (!same(w.inputs[input], out))
    faults.push_back(fmt::format("{}, but reads {} and declares {}", where,
                                 to_string(w.inputs[input]), to_string(out)));
  else if (w.sources[input].data)
    faults.push_back(where + ", which every segment can have from the data");
  else if (w.sources[input].index >= 0 && w.grad_types[input] != out.type)
    faults.push_back(where + ", but it is gathered, and gradients are summed there in float32");
  else if (out.exchange != Exchange::kNone)
    faults.push_back(where + " through an exchange");
  else if (w.readers[index] < 0)
    faults.push_back(where + ", which the next segment does not read");

  // Two outputs cannot be one buffer: each would bring a gradient of its own.
  for (size_t i = 0; i < index; ++i)
    if (w.outputs[i].same_as == out.same_as)
      faults.push_back(where + " and as " + w.outputs[i].name);
}

// Outputs: unique names, scatters that can be cut, legal pass-throughs, and a loss at the end of
// every column.
void border_faults(const Model& model, std::vector<std::string>& faults) {
  const auto segments = wire(model);

  // `ends` stays true while every column's last segment ends with the loss.
  const Border loss{"loss", {2}, at::kDouble};
  bool ends = !segments.empty();
  for (const SegmentWiring& w : segments) {
    const std::string where = name_of(model, w);
    std::set<std::string> names;
    for (size_t i = 0; i < w.outputs.size(); ++i) {
      const Border& out = w.outputs[i];
      if (!names.insert(out.name).second)
        faults.push_back(fmt::format("{} has two outputs {}", where, out.name));

      // A scatter sums partial sums, which are float32, and cuts the sum into equal parts.
      if (out.exchange == Exchange::kScatter &&
          (out.type != at::kFloat || elements(out) % model.columns != 0))
        faults.push_back(
            fmt::format("{} scatters {} over {} columns; it must be float32 and cut evenly", where,
                        to_string(out), model.columns));
      pass_on_fault(model, segments, w, i, faults);
    }
    input_faults(model, segments, w, faults);

    // This is the last segment of its column.
    if (w.next < 0)
      ends = ends && !w.outputs.empty() && w.outputs.back().name == loss.name &&
             same(w.outputs.back(), loss);
  }
  if (!ends)
    faults.push_back(
        fmt::format("the last segment's outputs must end with {}: sum and count", to_string(loss)));
}

}  // namespace

std::vector<SegmentWiring> wire(const Model& model) {
  std::vector<SegmentWiring> all;
  std::vector<int> last(static_cast<size_t>(model.columns), -1);  // segment of each column
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (size_t s = 0; s < model.blocks[b].segments.size(); ++s) {
      const Segment& segment = *model.blocks[b].segments[s];
      int& before = last[b % last.size()];
      SegmentWiring w;
      w.block = static_cast<int>(b);
      w.segment = static_cast<int>(s);
      w.before = before;
      w.inputs = segment.inputs();
      w.outputs = segment.outputs();

      // Who reads an output is known only when the next segment of the column comes; until then it
      // counts as unread.
      for (const Border& out : w.outputs) {
        w.readers.push_back(-1);
        w.read_types.push_back(out.type);
        w.same_as.push_back(out.same_as.empty() ? -1 : find_border(w.inputs, out.same_as));
      }

      // The segment before comes first, so its output hides a tensor of the data with the
      // same name.
      for (size_t i = 0; i < w.inputs.size(); ++i) {
        const Border& in = w.inputs[i];
        Source source;
        bool gathered = false;
        if (before >= 0) source.index = find_border(all[before].outputs, in.name);
        if (source.index >= 0) {
          SegmentWiring& from = all[before];
          gathered = from.outputs[source.index].exchange == Exchange::kGather && floating(in);
          from.readers[source.index] = static_cast<int>(i);
          from.read_types[source.index] = in.type;
        } else {
          source = {true, find_border(model.data, in.name)};
        }

        // The data has no gradient; a gathered input's gradient is a sum over columns, in float32.
        w.wanted.push_back(!source.data && floating(in));
        w.grad_types.push_back(gathered ? at::kFloat : in.type);
        w.sources.push_back(source);
      }
      if (before >= 0) all[before].next = static_cast<int>(all.size());
      before = static_cast<int>(all.size());
      all.push_back(std::move(w));
    }
  return all;
}

// Blocks are visited in order, so the k-th user of a parameter gets the k-th extra gradient.
std::vector<std::vector<Owner>> owners(const Model& model) {
  std::vector<std::vector<Owner>> all(model.blocks.size());
  std::vector<std::vector<int>> users(model.blocks.size());  // users seen so far
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    int own = 0;
    const auto& parameters = model.blocks[b].parameters;
    users[b].resize(parameters.size());

    // Own parameters are numbered; for a shared one its owner is looked for among earlier blocks.
    for (size_t i = 0; i < parameters.size(); ++i) {
      Owner owner;
      if (parameters[i].shared_with.empty()) {
        owner = {static_cast<int>(b), static_cast<int>(i), own++, -1};
      } else {
        for (size_t o = 0; o < b && owner.block < 0; ++o)
          for (size_t j = 0; j < model.blocks[o].parameters.size() && owner.block < 0; ++j)
            if (model.blocks[o].parameters[j].shared_with.empty() &&
                parameters[i].shared_with ==
                    model.blocks[o].name + "/" + model.blocks[o].parameters[j].name)
              owner = {static_cast<int>(o), static_cast<int>(j), all[o][j].own_index,
                       users[o][j]++};
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

  // The checks below go through layers of columns and need these to come out even.
  if (!columns_divide(model)) {
    faults.push_back(fmt::format("{} blocks do not make layers of {} columns", model.blocks.size(),
                                 model.columns));
    return faults;
  }
  column_faults(model, faults);
  border_faults(model, faults);
  return faults;
}

void check_thread_ranks(const Model& model) {
  std::vector<std::string> names;
  for (const Block& block : model.blocks)
    if (std::any_of(block.segments.begin(), block.segments.end(),
                    [](const auto& s) { return s->draws(); }))
      names.push_back(block.name);
  if (!names.empty())
    throw Error(fmt::format(
        "block {} draws from torch's generator, which ranks that are threads would share; "
        "use layout.workers = \"process\"",
        fmt::join(names, ", ")));
}

int64_t elements(const Border& border) {
  return std::accumulate(border.dims.begin(), border.dims.end(), int64_t{1}, std::multiplies<>());
}

int64_t border_bytes(const Border& border) {
  return elements(border) * static_cast<int64_t>(c10::elementSize(border.type));
}

bool floating(const Border& border) { return c10::isFloatingType(border.type); }

std::string to_string(const Border& border) {
  return fmt::format("{} {} [{}]", border.name, c10::toString(border.type),
                     fmt::join(border.dims, ", "));
}

}  // namespace tutti
