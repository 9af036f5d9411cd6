// Describes a model to the plan, which knows no torch: names, sizes and offsets. The bytes that can
// only be measured come from dry_run.h.
#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <numeric>
#include <set>

#include "base/error.h"
#include "model/core/segment.h"
#include "model/core/wiring.h"

namespace tutti {

namespace {

int64_t count(const std::vector<int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

int64_t size_of(at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); }

OutputShape describe_output(const SegmentWiring& wiring, size_t index, int columns) {
  const Border& border = wiring.outputs[index];
  OutputShape out;
  out.name = border.name;
  out.bytes = border_bytes(border);
  out.exchange = border.exchange;
  out.floating = floating(border);
  out.element_bytes = size_of(border.type);
  out.read_element_bytes = size_of(wiring.read_types[index]);
  out.same_as = wiring.same_as[index];

  // What the next segment reads: S times as much after a gather, one S-th after a scatter.
  out.read_bytes = elements(border) * out.read_element_bytes;
  if (border.exchange == Exchange::kGather) out.read_bytes *= columns;
  if (border.exchange == Exchange::kScatter) out.read_bytes /= columns;
  return out;
}

SegmentShape describe_segment(const Segment& segment, const SegmentWiring& wiring, int columns) {
  SegmentShape shape;
  shape.name = segment.name();
  shape.saved_bytes = segment.saved_bytes();
  shape.work_bytes = segment.work_bytes();
  shape.deferred_bytes = segment.deferred_bytes();
  shape.splits = segment.splits();
  shape.attention = segment.attention();
  shape.flops = segment.flops();
  for (size_t i = 0; i < wiring.inputs.size(); ++i)
    shape.inputs.push_back(
        {wiring.sources[i].data, wiring.sources[i].index, wiring.wanted[i],
         wiring.wanted[i] ? elements(wiring.inputs[i]) * size_of(wiring.grad_types[i]) : 0,
         segment.consumes(i)});
  for (size_t i = 0; i < wiring.outputs.size(); ++i) {
    shape.outputs.push_back(describe_output(wiring, i, columns));

    // An output that is passed on has no memory of its own.
    if (wiring.same_as[i] < 0) shape.border_bytes += shape.outputs.back().bytes;
  }
  return shape;
}

}  // namespace

bool by_torch(const Model& model) {
  for (const Block& block : model.blocks)
    for (const auto& segment : block.segments)
      if (segment->by_torch()) return true;
  return false;
}

ModelShape describe(const Model& model) {
  if (const auto faults = model_faults(model); !faults.empty())
    throw Error(fmt::format("{}", fmt::join(faults, "\n")));

  // Everything below may rely on a model without faults.
  ModelShape shape;
  shape.columns = model.columns;
  for (const Border& border : model.data) shape.data_bytes.push_back(border_bytes(border));

  // A unit is its block's own parameters one after the other, each aligned as kernels and the GPU's
  // matmuls want them.
  for (const Block& block : model.blocks) {
    const int index = static_cast<int>(shape.blocks.size());
    BlockShape b;
    b.name = block.name;
    b.layer = index / model.columns;
    b.column = index % model.columns;
    for (const Parameter& parameter : block.parameters) {
      if (!parameter.shared_with.empty()) continue;
      ParameterShape p;
      p.name = block.name + "." + parameter.name;
      p.dims = parameter.dims;
      p.offset = b.unit_size;
      p.size = count(parameter.dims);
      p.role = parameter.role;
      b.unit_size = align_up(p.offset + p.size, kAlign);
      b.parameters.push_back(std::move(p));
    }
    b.gradient_size = b.unit_size;
    shape.blocks.push_back(std::move(b));
  }

  // The wiring is in block order, so a block's segments keep theirs.
  for (const SegmentWiring& wiring : wire(model))
    shape.blocks[wiring.block].segments.push_back(describe_segment(
        *model.blocks[wiring.block].segments[wiring.segment], wiring, model.columns));

  // The gradients of further users of a parameter follow the owner's unit. Users come in block
  // order, so an owner's extra gradients are added in block order, whatever the layout.
  const auto owner_of = owners(model);
  for (size_t user = 0; user < owner_of.size(); ++user) {
    std::set<int> written;
    for (const Owner& owner : owner_of[user]) {
      if (owner.extra < 0) continue;
      written.insert(owner.block);
      shape.blocks[user].shares.push_back({owner.block, owner.own_index, owner.extra});
      BlockShape& b = shape.blocks[owner.block];
      ParameterShape& p = b.parameters[owner.own_index];
      p.extra_gradients.push_back(b.gradient_size);
      b.gradient_size = align_up(b.gradient_size + p.size, kAlign);
    }
    shape.blocks[user].writes_units.assign(written.begin(), written.end());
  }
  return shape;
}

}  // namespace tutti
