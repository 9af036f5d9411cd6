#include "model/runner.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace tutti {

namespace {

constexpr int64_t kLine = 256;  // bytes

int64_t rounded_bytes(const Border& border) { return align_up(border_bytes(border), kLine); }

std::unique_ptr<Arena> make_arena(BufferKind kind, int64_t bytes, Accounts& accounts, MemorySource* source) {
  return bytes > 0 ? std::make_unique<Arena>(kind, bytes, accounts, source) : nullptr;
}

// Gradients of borders live in two buffers by turns: a segment reads one and writes the other. Those of consumed inputs
// live in neither. Bytes of each buffer.
std::array<int64_t, 2> grad_border_bytes(const Model& model, const std::vector<SegmentWiring>& segments, bool consume) {
  std::array<int64_t, 2> bytes{};
  for (size_t s = 0; s < segments.size(); ++s) {
    const SegmentWiring& w = segments[s];
    const Segment& segment = *model.blocks[w.block].segments[w.segment];
    int64_t sum = 0;
    for (size_t i = 0; i < w.inputs.size(); ++i)
      if (w.wanted[i] && !(consume && segment.consumes(i))) sum += rounded_bytes(w.inputs[i]);
    bytes[s % 2] = std::max(bytes[s % 2], sum);
  }
  return bytes;
}

}  // namespace

ModelRunner::ModelRunner(const Model& model, const ModelShape& shape, std::span<float* const> units, Accounts& accounts,
                         RunnerOptions options)
    : model_(model), options_(std::move(options)), ledger_(accounts) {
  auto segments = wire(model);
  TUTTI_CHECK(model.columns == 1, "a model of {} columns needs a plan", model.columns);
  int64_t border_total = 0, saved_total = 0, work_max = 0;
  for (const SegmentWiring& w : segments) {
    const Segment& segment = *model.blocks[w.block].segments[w.segment];
    for (const Border& out : w.outputs) {
      TUTTI_CHECK(out.exchange == Exchange::kNone && out.same_as.empty(),
                  "output {} of block {} is exchanged or passed on, which needs a plan", out.name,
                  model.blocks[w.block].name);
      border_total += rounded_bytes(out);
    }
    saved_total += align_up(segment.saved_bytes(), kLine);
    work_max = std::max(work_max, align_up(segment.work_bytes(), kLine));
  }
  const auto grad_bytes = grad_border_bytes(model, segments, options_.consume);
  borders_ = make_arena(BufferKind::kBorder, border_total + grad_bytes[0] + grad_bytes[1], accounts, options_.memory);
  saved_ = make_arena(BufferKind::kSaved, saved_total, accounts, options_.memory);
  work_ = make_arena(BufferKind::kWork, work_max, accounts, options_.memory);
  const std::span<std::byte> work = work_ ? work_->take(work_max) : std::span<std::byte>{};
  std::array<std::span<std::byte>, 2> grads;
  for (int i = 0; i < 2; ++i)
    if (grad_bytes[i] > 0) grads[i] = borders_->take(grad_bytes[i]);

  for (size_t s = 0; s < segments.size(); ++s) {
    Slot slot;
    slot.wiring = std::move(segments[s]);
    const SegmentWiring& w = slot.wiring;
    if (w.segment == 0) first_slot_.push_back(static_cast<int>(s));
    slot.segment = model.blocks[w.block].segments[w.segment].get();
    for (const Border& out : w.outputs)
      slot.outputs.push_back(view(borders_->take(rounded_bytes(out)).data(), out.dims, out.type));
    std::byte* grad = grads[s % 2].data();
    for (size_t i = 0; i < w.inputs.size(); ++i) {
      if (w.wanted[i] && options_.consume && slot.segment->consumes(i)) {
        slot.grad_inputs.push_back(slots_.back().outputs[w.sources[i].index]);
        continue;
      }
      slot.grad_inputs.push_back(w.wanted[i] ? view(grad, w.inputs[i].dims, w.inputs[i].type) : at::Tensor());
      if (w.wanted[i]) grad += rounded_bytes(w.inputs[i]);
    }
    if (const int64_t bytes = slot.segment->saved_bytes(); bytes > 0)
      slot.saved = saved_->take(align_up(bytes, kLine)).first(bytes);
    slot.work = work.first(slot.segment->work_bytes());
    slots_.push_back(std::move(slot));
  }

  const auto owner = owners(model);
  places_.resize(model.blocks.size());
  parameters_.resize(model.blocks.size());
  low_.resize(model.blocks.size());
  for (size_t b = 0; b < model.blocks.size(); ++b)
    for (size_t i = 0; i < owner[b].size(); ++i) {
      const Owner& o = owner[b][i];
      TUTTI_CHECK(o.block >= 0, "the model was not checked by describe()");
      TUTTI_CHECK(reinterpret_cast<uintptr_t>(units[o.block]) % 64 == 0, "unit {} is not aligned", o.block);
      const ParameterShape& p = shape.blocks[o.block].parameters[o.own_index];
      Place place;
      place.dims = p.dims;
      place.values = view(units[o.block] + p.offset, p.dims, at::kFloat);
      place.unit = o.block;
      place.gradient_offset = o.extra < 0 ? p.offset : p.extra_gradients[o.extra];
      parameters_[b].push_back(place.values);
      if (!options_.low.empty()) {
        const int64_t bytes = p.offset * static_cast<int64_t>(c10::elementSize(options_.precision));
        low_[b].push_back(view(static_cast<std::byte*>(options_.low[o.block]) + bytes, p.dims, options_.precision));
      }
      places_[b].push_back(std::move(place));
    }
}

at::Tensor ModelRunner::view(void* memory, const std::vector<int64_t>& dims, at::ScalarType type) const {
  return at::for_blob(memory, dims)
      .options(at::TensorOptions().dtype(type).device(options_.device))
      .target_device(options_.device)
      .make_tensor();
}

Context ModelRunner::context(int block, Slot& slot, const Pass& pass, Tensors gradients) {
  Context context{pass,      parameters_[block], gradients,           slot.saved,
                  slot.work, slot.kept,          options_.loss_scale, low_[block]};
  context.pass.block = block;
  context.consume = options_.consume;
  return context;
}

std::vector<at::Tensor> ModelRunner::inputs(int index, Tensors data) const {
  std::vector<at::Tensor> in;
  for (const Source& source : slots_[index].wiring.sources)
    in.push_back(source.data ? data[source.index] : slots_[index - 1].outputs[source.index]);
  return in;
}

// The buffers a gradient may lie in are few (the rank's fold stack) and stay where they are, so their views are kept.
const at::Tensor& ModelRunner::gradient(Place& place, float* base) {
  TUTTI_CHECK(base != nullptr, "no memory for the gradient of unit {}", place.unit);
  float* at = base + place.gradient_offset;
  for (const auto& [address, tensor] : place.views)
    if (address == at) return tensor;
  constexpr size_t kMostViews = 64;
  if (place.views.size() == kMostViews) place.views.clear();
  return place.views.emplace_back(at, view(at, place.dims, at::kFloat)).second;
}

void ModelRunner::forward(int block, int segment, const Pass& pass, Tensors data) {
  Slot& s = slot(block, segment);
  if (block == 0 && segment == 0 && model_.check && data[0].is_cpu()) model_.check(data);
  const auto in = inputs(first_slot_[block] + segment, data);
  Context context = this->context(block, s, pass, {});
  // Nearly all that an autograd segment's forward allocates stays until its backward.
  AllocationScope scope(ledger_, BufferKind::kSaved);
  s.kept.reset();
  s.segment->forward(context, in, s.outputs);
}

void ModelRunner::backward(int block, int segment, const Pass& pass, Tensors data, std::span<float* const> gradients) {
  const int index = first_slot_[block] + segment;
  Slot& s = slots_[index];
  const auto in = inputs(index, data);
  std::vector<at::Tensor> grad_out(s.outputs.size());
  if (index + 1 < static_cast<int>(slots_.size())) {
    const Slot& next = slots_[index + 1];
    for (size_t i = 0; i < next.wiring.sources.size(); ++i)
      if (next.wiring.wanted[i]) grad_out[next.wiring.sources[i].index] = next.grad_inputs[i];
  }
  gradients_.clear();
  for (Place& place : places_[block]) gradients_.push_back(gradient(place, gradients[place.unit]));
  Context context = this->context(block, s, pass, gradients_);
  AllocationScope scope(ledger_, BufferKind::kWork);
  s.segment->backward(context, in, s.outputs, grad_out, s.grad_inputs);
  s.kept.reset();
}

void ModelRunner::forward_all(const Pass& pass, Tensors data) {
  for (const Slot& s : slots_) forward(s.wiring.block, s.wiring.segment, pass, data);
}

void ModelRunner::backward_all(const Pass& pass, Tensors data, std::span<float* const> gradients) {
  for (size_t i = slots_.size(); i-- > 0;)
    backward(slots_[i].wiring.block, slots_[i].wiring.segment, pass, data, gradients);
}

Loss ModelRunner::loss() const {
  const at::Tensor values = loss_border().cpu();
  return {values.const_data_ptr<double>()[0], values.const_data_ptr<double>()[1]};
}

bool all_finite(const at::Tensor& values) {
  return !at::isFloatingType(values.scalar_type()) || values.isfinite().all().item<bool>();
}

const at::Tensor& ModelRunner::border(const std::string& name) const {
  for (size_t s = slots_.size(); s-- > 0;)
    for (size_t i = 0; i < slots_[s].outputs.size(); ++i)
      if (slots_[s].wiring.outputs[i].name == name) return slots_[s].outputs[i];
  throw Error(fmt::format("the model has no border {}", name));
}

int ModelRunner::first_nonfinite_block() const {
  for (const Slot& s : slots_)
    for (const at::Tensor& out : s.outputs)
      if (!all_finite(out)) return s.wiring.block;
  return -1;
}

}  // namespace tutti
