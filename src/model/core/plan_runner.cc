// Makes tensors of a program's buffers and runs segments on them. Tensors are made once and kept,
// because making one costs more than a small kernel.
#include "model/core/plan_runner.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/core/device_tensor.h"
#include "model/core/wiring.h"
#include "tensor/allocator.h"

namespace tutti {

namespace {

// Names one forward of a segment, and with it the backward that belongs to it: block,
// segment, lane, micro-batch.
using Key = std::tuple<int, int, int, int>;
Key key_of(const Instruction& i) { return {i.block, i.segment, i.lane, i.micro}; }

// A parameter of a block. Its tensors live as long as the runner, since graphs and modules hold on
// to them and to views of them. Their storage is pointed at the buffer in which the running
// instruction finds the values.
struct Place {
  const ParameterShape* shape = nullptr;
  int unit = 0;
  int64_t unit_size = 0;  // floats, of the owner
  int64_t gradient = 0;   // offset of its gradient in the unit's, in floats
  at::Tensor values, low;

  bool own() const { return gradient == shape->offset; }
  // Offset of its values in a buffer. A copy that holds no part of the unit itself is packed like
  // the extra gradients.
  int64_t offset_in(const Buffer& buffer) const {
    if (buffer.range.empty()) return shape->offset;
    return (!own() && buffer.range.begin >= unit_size ? gradient : shape->offset) -
           buffer.range.begin;
  }
  int64_t gradient_in(const Buffer& buffer) const {
    return gradient - (buffer.range.empty() ? 0 : buffer.range.begin);
  }
};

// Bytes that a segment wants.
struct Declared {
  int64_t saved, work, deferred;
};

}  // namespace

struct PlanRunner::Impl {
  Impl(const Model& model, const ModelShape& shape, const Program& program,
       std::function<std::byte*(int buffer)> memory, Accounts& accounts, RunnerOptions options)
      : model(model),
        program(program),
        memory(std::move(memory)),
        options(std::move(options)),
        ledger(accounts) {
    // Segments are listed block by block, so that (block, segment) becomes an index by one
    // addition.
    segments = wire(model);
    first.resize(model.blocks.size());
    for (const SegmentWiring& w : segments) {
      if (w.segment == 0) first[w.block] = static_cast<int>(declared.size());
      const Segment& s = *model.blocks[w.block].segments[w.segment];
      declared.push_back({s.saved_bytes(), s.work_bytes(), s.deferred_bytes()});
    }

    // A shared parameter is found in its owner's unit; only its gradient has a place of its own.
    const auto owner = owners(model);
    places.resize(model.blocks.size());
    for (size_t b = 0; b < model.blocks.size(); ++b)
      for (const Owner& o : owner[b]) {
        TUTTI_CHECK(o.block >= 0, "the model was not checked by describe()");
        const BlockShape& unit = shape.blocks[o.block];
        const ParameterShape& p = unit.parameters[o.own_index];
        places[b].push_back({&p,
                             o.block,
                             unit.unit_size,
                             o.extra < 0 ? p.offset : p.extra_gradients[o.extra],
                             {},
                             {}});
      }

    // Forwards that are recomputed later must not keep a graph the first time.
    for (const Queue& queue : program.queues)
      for (const Instruction& i : queue.instructions)
        if (i.op == Op::kForward && i.again) again.insert(key_of(i));
  }

  const SegmentWiring& wiring(const Instruction& i) const {
    return segments[first[i.block] + i.segment];
  }
  const Segment& segment(const Instruction& i) const {
    return *model.blocks[i.block].segments[i.segment];
  }

  // Guards every tensor made of a buffer: a plan that disagrees with the model must stop here, not
  // write into a neighbour.
  void check_room(int buffer, int64_t offset, int64_t bytes, const std::string& what) const {
    TUTTI_CHECK(buffer >= 0 && buffer < static_cast<int>(program.buffers.size()),
                "there is no buffer for {}", what);
    const Buffer& b = program.buffers[buffer];
    TUTTI_CHECK(offset >= 0 && offset + bytes <= b.bytes,
                "{}: bytes [{}, {}) are not in buffer {} of {} bytes", what, offset, offset + bytes,
                b.name, b.bytes);
  }

  // A tensor at `offset` bytes in a buffer. A program's buffers are few and mostly stay where they
  // are, so views are kept, and made anew only when a buffer has moved.
  at::Tensor view(int buffer, int64_t offset, const std::vector<int64_t>& dims, at::ScalarType type,
                  const std::string& what) {
    check_room(buffer, offset,
               c10::multiply_integers(dims) * static_cast<int64_t>(c10::elementSize(type)), what);
    auto& known = views[{buffer, offset}];
    std::byte* const at = memory(buffer) + offset;
    for (at::Tensor& tensor : known)
      if (tensor.scalar_type() == type && tensor.sizes() == at::IntArrayRef(dims))
        return tensor.data_ptr() == at ? tensor : tensor = view_on(options.device, at, dims, type);
    return known.emplace_back(view_on(options.device, at, dims, type));
  }
  // One tensor per border. `types`, if not empty, replace the borders' own. A tensor is undefined
  // where there is no buffer.
  std::vector<at::Tensor> tensors(const std::vector<int>& buffers,
                                  const std::vector<Border>& borders,
                                  const std::vector<at::ScalarType>& types = {}) {
    TUTTI_CHECK(buffers.size() == borders.size(), "{} buffers for {} borders", buffers.size(),
                borders.size());
    std::vector<at::Tensor> all(buffers.size());
    for (size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i] >= 0)
        all[i] = view(buffers[i], 0, borders[i].dims, types.empty() ? borders[i].type : types[i],
                      borders[i].name);
    return all;
  }

  // A segment's inputs, from the data or from the buffers of the segment before.
  std::vector<at::Tensor> inputs(const Instruction& i, Tensors data) {
    const SegmentWiring& w = wiring(i);
    TUTTI_CHECK(i.flow.in.size() == w.inputs.size(), "{} has {} buffers for {} inputs",
                to_string(i), i.flow.in.size(), w.inputs.size());
    std::vector<at::Tensor> all(w.inputs.size());
    for (size_t k = 0; k < all.size(); ++k) {
      if (w.sources[k].data)
        all[k] = data[w.sources[k].index];
      else if (i.flow.in[k] >= 0)
        all[k] = view(i.flow.in[k], 0, w.inputs[k].dims, w.inputs[k].type, w.inputs[k].name);
    }
    return all;
  }

  // The first `count` bytes of a buffer; empty where the segment declares none.
  std::span<std::byte> bytes(int buffer, int64_t count, const char* what) const {
    if (count == 0) return {};
    check_room(buffer, 0, count, what);
    return {memory(buffer), static_cast<size_t>(count)};
  }

  // The buffer in which the instruction finds the unit of this parameter.
  int buffer_of(const Instruction& i, const std::vector<UnitBuffer>& list,
                const Place& place) const {
    const auto found = std::find_if(list.begin(), list.end(),
                                    [&](const UnitBuffer& u) { return u.unit == place.unit; });
    TUTTI_CHECK(found != list.end(), "{}: no buffer of unit {} for {}", to_string(i), place.unit,
                place.shape->name);
    return found->buffer;
  }

  // Lets a tensor refer to `at` without making a new one: views of it that graphs keep follow
  // along.
  void point(at::Tensor& tensor, void* at, const Place& place, at::ScalarType type) const {
    if (!tensor.defined())
      tensor = view_on(options.device, at, place.shape->dims, type);
    else if (tensor.data_ptr() != at)
      tensor.storage().set_data_ptr_noswap({at, options.device});
  }

  // Fills `parameters` and `low` for the segment that is about to run.
  void point_parameters(const Instruction& i) {
    parameters.clear();
    low.clear();
    for (Place& place : places[i.block]) {
      // A weight part needs no values, and where slices are gathered (ZeRO-3) there are
      // none by then.
      if (i.part == Part::kWeight) {
        parameters.emplace_back();
        continue;
      }
      const int buffer = buffer_of(i, i.flow.parameters, place);
      const int64_t offset = place.offset_in(program.buffers[buffer]);
      check_room(buffer, offset * int64_t{sizeof(float)},
                 place.shape->size * int64_t{sizeof(float)}, place.shape->name);
      point(place.values, reinterpret_cast<float*>(memory(buffer)) + offset, place, at::kFloat);
      parameters.push_back(place.values);
      if (!options.low_memory) continue;
      const int64_t skip = offset * static_cast<int64_t>(c10::elementSize(options.precision));
      point(place.low, static_cast<std::byte*>(options.low_memory(buffer)) + skip, place,
            options.precision);
      low.push_back(place.low);
    }
  }

  // The gradients of the block's parameters, in declaration order.
  std::vector<at::Tensor> gradients(const Instruction& i) {
    std::vector<at::Tensor> all;
    for (const Place& place : places[i.block]) {
      const int buffer = buffer_of(i, i.flow.gradients, place);
      all.push_back(view(buffer,
                         place.gradient_in(program.buffers[buffer]) * int64_t{sizeof(float)},
                         place.shape->dims, at::kFloat, place.shape->name));
    }
    return all;
  }

  Context context(const Instruction& i, const Pass& pass, Tensors gradients,
                  std::shared_ptr<void>& kept) {
    point_parameters(i);
    const Declared& declares = declared[first[i.block] + i.segment];
    Context context{pass,
                    parameters,
                    gradients,
                    bytes(i.flow.saved, declares.saved, "saved values"),
                    bytes(i.flow.work, declares.work, "work"),
                    kept,
                    options.loss_scale,
                    low};

    // The plan consumes an input by naming its buffer as its gradient's, too.
    for (size_t k = 0; k < i.flow.grad_in.size() && k < i.flow.in.size(); ++k)
      context.consume =
          context.consume || (i.flow.grad_in[k] >= 0 && i.flow.grad_in[k] == i.flow.in[k]);
    if (i.part != Part::kBoth)
      context.deferred = bytes(i.flow.deferred, declares.deferred, "deferred values");
    context.pass.block = i.block;
    return context;
  }

  const Model& model;
  const Program& program;
  std::function<std::byte*(int buffer)> memory;
  RunnerOptions options;
  Ledger ledger;  // of what ATen allocates inside segments
  std::vector<SegmentWiring> segments;
  std::vector<Declared> declared;  // by segment
  std::vector<int> first;          // place of each block's first segment
  std::vector<std::vector<Place>> places;
  std::set<Key> again;                        // forwards that are recomputed
  std::map<Key, std::shared_ptr<void>> kept;  // graphs of the micro-batches in flight
  std::map<std::pair<int, int64_t>, std::vector<at::Tensor>> views;
  std::vector<at::Tensor> parameters, low;  // of the running instruction
};

std::vector<int64_t> declared_bytes(const Model& model, const Program& program) {
  std::vector<int64_t> bytes;

  // Saved values and temporaries count from zero, since most of them are ATen's own; the loop below
  // widens them to what segments declare. What is offloaded, or lent by the loader, is not in this
  // rank's memory.
  for (const Buffer& b : program.buffers)
    bytes.push_back(
        b.kind == BufferKind::kSaved || b.temporaries || b.offloaded || b.lent ? 0 : b.bytes);
  const auto widen = [&](int buffer, int64_t wanted) {
    if (buffer >= 0) bytes[buffer] = std::max(bytes[buffer], align_up(wanted, 256));
  };
  for (const Queue& queue : program.queues)
    for (const Instruction& i : queue.instructions) {
      if (i.op != Op::kForward && i.op != Op::kBackward) continue;
      const Segment& segment = *model.blocks[i.block].segments[i.segment];
      widen(i.flow.saved, segment.saved_bytes());
      widen(i.flow.deferred, segment.deferred_bytes());
      widen(i.flow.work, segment.work_bytes());
    }
  return bytes;
}

PlanRunner::PlanRunner(const Model& model, const ModelShape& shape, const Program& program,
                       std::function<std::byte*(int buffer)> memory, Accounts& accounts,
                       RunnerOptions options)
    : impl_(std::make_unique<Impl>(model, shape, program, std::move(memory), accounts,
                                   std::move(options))) {}

PlanRunner::~PlanRunner() = default;

void PlanRunner::forward(const Instruction& instruction, const Pass& pass, Tensors data) {
  Impl& m = *impl_;

  // The data is checked once per micro-batch and column: where it enters, and not when
  // it is recomputed.
  const Key key = key_of(instruction);
  if (instruction.block < m.model.columns && instruction.segment == 0 && !instruction.again &&
      m.model.check && data[0].is_cpu())
    m.model.check(data);
  const auto in = m.inputs(instruction, data);
  const auto out = m.tensors(instruction.flow.out, m.wiring(instruction).outputs);
  for (const auto* list : {&in, &out})
    for (const at::Tensor& tensor : *list)
      TUTTI_CHECK(tensor.defined(), "{} lacks a border's buffer", to_string(instruction));

  // A graph of an earlier micro-batch with this key is dropped before new memory is taken.
  m.kept.erase(key);
  std::shared_ptr<void> kept;
  Context context = m.context(instruction, pass, {}, kept);
  // Nearly everything that an autograd segment's forward allocates stays until its backward, unless
  // the segment is recomputed; the ledger counts it accordingly.
  const bool keep = instruction.again || !m.again.contains(key);
  AllocationScope scope(m.ledger, keep ? BufferKind::kSaved : BufferKind::kWork);
  m.segment(instruction).forward(context, in, out);
  if (keep && kept != nullptr) m.kept[key] = std::move(kept);
}

void PlanRunner::backward(const Instruction& instruction, const Pass& pass, Tensors data) {
  Impl& m = *impl_;
  const SegmentWiring& wiring = m.wiring(instruction);
  const Segment& segment = m.segment(instruction);
  const Flow& flow = instruction.flow;
  const auto in = m.inputs(instruction, data);
  const auto out = m.tensors(flow.out, wiring.outputs);

  // The weight part has no gradients of borders any more; the input part writes none of parameters.
  std::vector<at::Tensor> grad_out, grad_in, gradients;
  if (instruction.part != Part::kWeight) {
    grad_out = m.tensors(flow.grad_out, wiring.outputs, wiring.read_types);
    grad_in = m.tensors(flow.grad_in, wiring.inputs, wiring.grad_types);
  }
  if (instruction.part != Part::kInput) gradients = m.gradients(instruction);

  // The graph that forward kept. Hand-written segments have none and find their values in `saved`.
  std::shared_ptr<void> none;
  const auto found = m.kept.find(key_of(instruction));
  Context context =
      m.context(instruction, pass, gradients, found == m.kept.end() ? none : found->second);
  AllocationScope scope(m.ledger, BufferKind::kWork);

  // After an input part the graph stays: the weight part still needs it.
  switch (instruction.part) {
    case Part::kBoth:
      segment.backward(context, in, out, grad_out, grad_in);
      break;
    case Part::kInput:
      segment.backward_input(context, in, out, grad_out, grad_in);
      return;
    case Part::kWeight:
      segment.backward_weight(context, in, out);
      break;
  }
  if (found != m.kept.end()) m.kept.erase(found);
}

Loss PlanRunner::loss(const Instruction& forward) const {
  const at::Tensor loss = output(forward, "loss");
  TUTTI_CHECK(loss.defined(), "{} has no loss", to_string(forward));
  const at::Tensor values = loss.cpu();
  return {values.const_data_ptr<double>()[0], values.const_data_ptr<double>()[1]};
}

at::Tensor PlanRunner::output(const Instruction& forward, const std::string& name) const {
  const auto& borders = impl_->wiring(forward).outputs;
  for (size_t i = 0; i < borders.size(); ++i)
    if (borders[i].name == name)
      return impl_->view(forward.flow.out[i], 0, borders[i].dims, borders[i].type, borders[i].name);
  return {};
}

namespace {

// Whether all floating values are finite, as a tensor, so that a device is not waited for.
at::Tensor all_of(const std::vector<at::Tensor>& tensors) {
  at::Tensor all;
  for (const at::Tensor& values : tensors) {
    if (!at::isFloatingType(values.scalar_type())) continue;
    const at::Tensor finite = values.isfinite().all();
    all = all.defined() ? all.logical_and(finite) : finite;
  }
  return all;
}

}  // namespace

at::Tensor PlanRunner::finite(const Instruction& forward) const {
  std::vector<at::Tensor> outputs;
  for (const Border& border : impl_->wiring(forward).outputs)
    outputs.push_back(output(forward, border.name));
  return all_of(outputs);
}

at::Tensor PlanRunner::finite_gradients(const Instruction& backward) const {
  return backward.part == Part::kInput ? at::Tensor() : all_of(impl_->gradients(backward));
}

}  // namespace tutti
