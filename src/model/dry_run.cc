#include "model/dry_run.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <typeinfo>

#include "base/error.h"
#include "model/adaptor.h"
#include "model/wiring.h"
#include "tensor/allocator.h"

namespace tutti {

namespace {

struct Measured {
  int64_t saved = 0, work = 0;
};

// Whole numbers are indices and targets: zero is a valid one of every kind.
at::Tensor filled(const std::vector<int64_t>& dims, at::ScalarType type) {
  return c10::isFloatingType(type) ? at::ones(dims, type) : at::zeros(dims, type);
}

std::vector<at::Tensor> make_borders(const std::vector<Border>& borders) {
  std::vector<at::Tensor> tensors;
  for (const Border& b : borders) tensors.push_back(filled(b.dims, b.type));
  return tensors;
}

std::vector<at::Tensor> make_parameters(const Block& block) {
  std::vector<at::Tensor> tensors;
  for (const Parameter& p : block.parameters) tensors.push_back(at::zeros(p.dims));
  return tensors;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
}

Measured measure(const Block& block, const SegmentWiring& wiring, int index) {
  const Segment& segment = *block.segments[wiring.segment];
  const auto parameters = make_parameters(block), gradients = make_parameters(block);
  const auto in = make_borders(wiring.inputs), out = make_borders(wiring.outputs);
  auto grad_out = make_borders(wiring.outputs), grad_in = make_borders(wiring.inputs);
  for (size_t i = 0; i < grad_in.size(); ++i)
    if (!wiring.wanted[i]) grad_in[i] = at::Tensor();
  for (size_t i = 0; i < grad_out.size(); ++i)
    if (!floating(wiring.outputs[i]) || wiring.outputs[i].name == "loss") grad_out[i] = at::Tensor();
  const at::Tensor saved = at::zeros({segment.saved_bytes()}, at::kByte),
                   work = at::zeros({segment.work_bytes()}, at::kByte);
  Accounts forward, backward;  // one each: a peak never sinks
  Ledger forward_ledger(forward), backward_ledger(backward);
  std::shared_ptr<void> kept;
  Pass pass;
  pass.block = index;
  Context context{pass, parameters, {}, bytes_of(saved), bytes_of(work), kept};

  Measured measured;
  {
    AllocationScope scope(forward_ledger, BufferKind::kWork);
    segment.forward(context, in, out);
  }
  measured.saved = forward.current(BufferKind::kWork);
  measured.work = forward.peak(BufferKind::kWork) - measured.saved;
  context.gradients = gradients;
  {
    AllocationScope scope(backward_ledger, BufferKind::kWork);
    segment.backward(context, in, out, grad_out, grad_in);
    kept.reset();
  }
  measured.work = std::max(measured.work, backward.peak(BufferKind::kWork));
  return measured;
}

// Segments with one key allocate alike. Autograd segments are all of one type, whatever they compute: each is its own.
std::string key_of(const Block& block, const SegmentWiring& wiring) {
  const Segment& segment = *block.segments[wiring.segment];
  std::string key = typeid(segment).name();
  if (typeid(segment) == typeid(AutogradSegment)) key += fmt::format(" {}", fmt::ptr(&segment));
  for (const Border& b : wiring.inputs) key += "; in " + to_string(b);
  for (const Border& b : wiring.outputs) key += "; out " + to_string(b);
  for (bool wanted : wiring.wanted) key += wanted ? " w" : " -";
  for (const Parameter& p : block.parameters) key += fmt::format("; {} [{}]", p.name, fmt::join(p.dims, ", "));
  return key + fmt::format("; {} {} {}", segment.name(), segment.saved_bytes(), segment.work_bytes());
}

}  // namespace

void dry_run(const Model& model, ModelShape& shape) {
  install_accounting_allocator();
  std::map<std::string, Measured> known;
  for (const SegmentWiring& wiring : wire(model)) {
    const Block& block = model.blocks[wiring.block];
    const std::string key = key_of(block, wiring);
    auto found = known.find(key);
    if (found == known.end()) found = known.emplace(key, measure(block, wiring, wiring.block)).first;
    SegmentShape& s = shape.blocks[wiring.block].segments[wiring.segment];
    s.saved_bytes = block.segments[wiring.segment]->saved_bytes() + found->second.saved;
    s.work_bytes = block.segments[wiring.segment]->work_bytes() + found->second.work;
  }
}

}  // namespace tutti
