// The model as the plan sees it. Only names, sizes and offsets are made here; measured bytes come from dry_run.h.
#include <fmt/ranges.h>

#include <numeric>
#include <set>

#include "base/error.h"
#include "model/segment.h"
#include "model/wiring.h"

namespace tutti {

namespace {

int64_t count(const std::vector<int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

SegmentShape describe(const Segment& segment) {
  SegmentShape shape;
  shape.name = segment.name();
  shape.saved_bytes = segment.saved_bytes();
  shape.work_bytes = segment.work_bytes();
  for (const Border& border : segment.outputs()) shape.border_bytes += border_bytes(border);
  shape.flops = segment.flops();
  return shape;
}

}  // namespace

ModelShape describe(const Model& model) {
  if (const auto faults = model_faults(model); !faults.empty()) throw Error(fmt::format("{}", fmt::join(faults, "\n")));
  ModelShape shape;
  for (const Block& block : model.blocks) {
    BlockShape b;
    b.name = block.name;
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
    for (const auto& segment : block.segments) b.segments.push_back(describe(*segment));
    shape.blocks.push_back(std::move(b));
  }
  // Users in block order, so that an owner's extra gradients are added in block order.
  const auto owner_of = owners(model);
  for (size_t user = 0; user < owner_of.size(); ++user) {
    std::set<int> written;
    for (const Owner& owner : owner_of[user]) {
      if (owner.extra < 0) continue;
      written.insert(owner.block);
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
