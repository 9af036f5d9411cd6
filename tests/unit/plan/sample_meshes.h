// Model shapes with borders, columns and shared parameters, and layouts, for tests of meshes.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/make/plan_mesh.h"

namespace tutti::test {

struct MeshModel {
  int layers = 4;  ///< with the two at the ends
  int columns = 1;
  bool tied = false;  ///< the last layer uses the first one's parameter
  bool splits = true;
  /// segments consume some of their inputs; the last layer has one for the loss
  bool consumes = false;
};

namespace detail {

inline void add_parameter(BlockShape& block, const std::string& name, int64_t size) {
  ParameterShape p;
  p.name = block.name + "." + name;
  p.dims = {size};
  p.offset = block.unit_size;
  p.size = size;
  block.unit_size = align_up(p.offset + size, kAlign);
  block.gradient_size = block.unit_size;
  block.parameters.push_back(std::move(p));
}

inline OutputShape output(const std::string& name, int64_t bytes, int columns, Exchange exchange,
                          int same_as = -1) {
  OutputShape out;
  out.name = name;
  out.bytes = out.read_bytes = bytes;
  out.exchange = columns > 1 ? exchange : Exchange::kNone;
  if (out.exchange == Exchange::kGather) out.read_bytes *= columns;
  if (out.exchange == Exchange::kScatter) out.read_bytes /= columns;
  out.same_as = same_as;
  return out;
}

inline SegmentShape segment(const std::string& name, bool splits) {
  SegmentShape s;
  s.name = name;
  s.splits = splits;
  s.saved_bytes = 300;
  s.work_bytes = 500;
  s.deferred_bytes = splits ? 200 : 0;
  s.flops = 1e3;
  return s;
}

inline void share(ModelShape& model, int user, int owner, int parameter) {
  BlockShape& unit = model.blocks[owner];
  ParameterShape& p = unit.parameters[parameter];
  model.blocks[user].shares.push_back(
      {owner, parameter, static_cast<int>(p.extra_gradients.size())});
  auto& units = model.blocks[user].writes_units;
  if (units.empty() || units.back() != owner) units.push_back(owner);
  p.extra_gradients.push_back(unit.gradient_size);
  unit.gradient_size = align_up(unit.gradient_size + p.size, kAlign);
}

}  // namespace detail

/// An embedding, layers of three segments with a residual that is passed on, one layer without
/// parameters of its own, and a head that reads the data again (or, where that consumes, a head and
/// its loss). Where there are columns they meet twice a layer, and share a norm's weight.
inline ModelShape mesh_model(const MeshModel& m) {
  using detail::output;
  using detail::segment;
  constexpr int64_t kPart = 2048;  // bytes of x in a column
  ModelShape model;
  model.columns = m.columns;
  model.data_bytes = {64, 128};
  const int64_t part = kPart / m.columns;
  for (int layer = 0; layer < m.layers; ++layer) {
    for (int column = 0; column < m.columns; ++column) {
      BlockShape block;
      block.name = fmt::format("layer{}.slice{}", layer, column);
      block.layer = layer, block.column = column;
      if (layer == 0) {
        detail::add_parameter(block, "table", 9000);
        SegmentShape s = segment("embed", m.splits);
        s.inputs = {{true, 0, false, 0}};
        s.outputs = {output("x", part, m.columns, Exchange::kNone)};
        block.segments = {s};
      } else if (layer + 1 == m.layers) {
        if (!m.tied) detail::add_parameter(block, "table", 5000);
        SegmentShape s = segment("head", m.splits);
        s.inputs = {{false, 0, true, part, m.consumes}, {true, 1, false, 0}};
        s.outputs = {output("loss", 16, m.columns, Exchange::kNone)};
        block.segments = {s};
        if (m.consumes) {
          SegmentShape loss = segment("loss", m.splits);
          loss.inputs = {{false, 0, true, part, true}, {true, 1, false, 0}};
          loss.outputs = s.outputs;
          block.segments[0].outputs = {output("logits", part, m.columns, Exchange::kNone)};
          block.segments.push_back(loss);
        }
      } else {
        if (layer != 2) {
          if (column == 0) detail::add_parameter(block, "norm", 100);
          detail::add_parameter(block, "weight", 4500 + 100 * layer);
          if (column == 0) detail::add_parameter(block, "bias", 70);
        }
        SegmentShape norm = segment("norm", m.splits), mix = segment("mix", m.splits),
                     sum = segment("sum", m.splits);
        norm.inputs = {{false, 0, true, part}};
        norm.outputs = {output("h", part, m.columns, Exchange::kGather),
                        output("x", part, m.columns, Exchange::kNone, 0)};
        mix.attention = true;
        mix.inputs = {{false, 0, true, kPart, m.consumes}, {false, 1, true, part}};
        mix.outputs = {output("y", kPart, m.columns, Exchange::kScatter),
                       output("x", part, m.columns, Exchange::kNone, 1)};
        sum.inputs = {{false, 0, true, part, m.consumes}, {false, 1, true, part}};
        sum.outputs = {output("x", part, m.columns, Exchange::kNone)};
        block.segments = {norm, mix, sum};
      }
      model.blocks.push_back(std::move(block));
    }
  }
  for (int layer = 0; layer < m.layers; ++layer) {
    for (int column = 0; column < m.columns; ++column) {
      const int block = model.block_at(layer, column);
      const bool middle = layer > 0 && layer + 1 < m.layers && layer != 2;
      if (middle && column > 0) {
        detail::share(model, block, model.block_at(layer, 0), 0);
        detail::share(model, block, model.block_at(layer, 0), 2);
      }
      if (m.tied && layer + 1 == m.layers)
        detail::share(model, block, model.block_at(0, column), 0);
    }
  }
  return model;
}

inline std::string name_of(const MeshModel& m, const MeshOptions& o) {
  return fmt::format(
      "{} layers, {} columns{}{}, {}x{}x{} shards {} zero {} lanes {} micro-batches {}{}{} {} "
      "chunks {} in flight {} "
      "recompute {}{} "
      "depth {}{}{} hosts {}{}{}{}{} merged {}",
      m.layers, m.columns, m.tied ? " tied" : "", m.consumes ? " consuming" : "", o.mesh.data,
      o.mesh.tensor, o.mesh.pipeline, o.mesh.shards, o.zero, o.batch.lanes, o.batch.micro_batches,
      o.owner() ? " owner" : "", o.micro ? " by micro" : "", o.schedule, o.chunks, o.in_flight,
      static_cast<int>(o.recompute), o.overlap ? " overlap" : "", o.depth,
      o.offload_moments() ? " offload" : "", o.offload_parameters() ? " parameters offloaded" : "",
      o.hosts, o.windows ? "" : " no windows", o.device ? " device" : "", o.root() ? " root" : "",
      o.ring ? " ring" : "", o.bucket_floats);
}

/// A model on a mesh, to be planned once its other options are set.
struct PlannedMesh {
  ModelShape model;
  MeshOptions options;
  Plan plan;

  PlannedMesh(ModelShape shape, const Mesh& mesh, int zero, Batch batch) : model(std::move(shape)) {
    options.mesh = mesh, options.zero = zero, options.batch = batch;
  }
};

}  // namespace tutti::test
