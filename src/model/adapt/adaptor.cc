// A segment whose backward is autograd's. Forward builds a graph from fresh leaves and keeps it;
// backward differentiates that graph and copies the results to where the plan wants them. Around
// this are the checks that keep a foreign function from breaking what training relies on:
// undeclared draws, changed buffers, other outputs than declared.
#include "model/adapt/adaptor.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "model/adapt/autocast.h"
#include "model/adapt/draw_watch.h"
#include "model/core/wiring.h"
#include "tensor/allocator.h"

namespace tutti {

namespace {

constexpr int64_t kDeferredAlign = 256;  // bytes

// A seed for torch's generator that depends on the micro-batch and block alone. The built-in
// dropout draws from the same Purpose, which does no harm: these words only seed another generator.
uint64_t generator_seed(const Pass& pass) {
  const uint64_t place =
      uint64_t(pass.block) << 40 | uint64_t(pass.lane) << 20 | uint64_t(pass.micro);
  const auto words = philox({pass.seed, Purpose::kDropout, uint64_t(pass.step), place}, 0);
  return uint64_t{words[0]} << 32 | words[1];
}

// The generator is process-wide, so torch wants its mutex held.
void seed_generator(uint64_t seed, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

// Where the segment computes: where its inputs are, or its parameters if it has no inputs.
at::Device device_of(Tensors parameters, Tensors inputs) {
  for (const Tensors& tensors : {inputs, parameters})
    if (!tensors.empty()) return tensors.front().device();
  return at::kCPU;
}

// A leaf of the segment's own graph over the same memory. Autograd ends there: what came before
// belongs to another segment. Integers have no gradient.
at::Tensor leaf(const at::Tensor& tensor, bool training) {
  if (!at::isFloatingType(tensor.scalar_type())) return tensor;
  return tensor.detach().requires_grad_(training);
}

void check_outputs(const std::string& name, const std::vector<Border>& borders,
                   const std::vector<at::Tensor>& outputs) {
  if (outputs.size() != borders.size())
    throw Error(fmt::format("segment {} returned {} tensors; declared are {}", name, outputs.size(),
                            borders.size()));
  for (size_t i = 0; i < borders.size(); ++i) {
    if (!outputs[i].defined())
      throw Error(fmt::format("segment {} returned no tensor for {}", name, borders[i].name));
    const Border got{borders[i].name, outputs[i].sizes().vec(), outputs[i].scalar_type()};
    if (got.dims != borders[i].dims || got.type != borders[i].type)
      throw Error(fmt::format("segment {} returned {}; declared is {}", name, to_string(got),
                              to_string(borders[i])));
  }
}

bool aliases_any(const at::Tensor& tensor, Tensors others) {
  for (const at::Tensor& other : others)
    if (other.defined() && tensor.is_alias_of(other)) return true;
  return false;
}

// An undefined gradient means that the loss does not depend on the value: it is zero.
void write(const at::Tensor& to, const at::Tensor& from) {
  if (from.defined())
    to.copy_(from);
  else
    to.zero_();
}

// The inputs whose gradients are wanted.
std::vector<at::Tensor> wanted(Tensors inputs, Tensors grad_in) {
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (grad_in[i].defined()) leaves.push_back(inputs[i]);
  return leaves;
}

// The counterpart of wanted(): `grads` in the same order, each copied to its place.
void write_inputs(Tensors grad_in, std::span<const at::Tensor> grads) {
  size_t next = 0;
  for (const at::Tensor& to : grad_in)
    if (to.defined()) write(to, grads[next++]);
}

}  // namespace

// What forward leaves for backward, in Context::kept.
struct AutogradSegment::Graph {
  std::vector<at::Tensor> parameters, inputs, outputs;
  std::vector<at::Tensor> proposals;  // one per parameter; undefined where it is trained
  // what the input part leaves for the weight part: views of deferred memory
  std::vector<at::Tensor> grad_out;
};

AutogradSegment::AutogradSegment(Spec spec)
    : spec_(std::move(spec)), unscaled_(at::tensor({1.0, 0.0}, at::kDouble)) {}

std::vector<at::Tensor> AutogradSegment::call(const Pass& pass, Tensors parameters,
                                              Tensors inputs) const {
  const at::Device device = device_of(parameters, inputs);
  if (spec_.options.draws) seed_generator(generator_seed(pass), device);
  if (device.is_cpu() || spec_.options.precision == at::kFloat)
    return spec_.function(pass, parameters, inputs);

  // Under autocast outputs have the narrow type, but borders are what was declared: float32 mostly.
  const AutocastScope narrow(spec_.options.precision);
  auto outputs = spec_.function(pass, parameters, inputs);
  for (size_t i = 0; i < outputs.size() && i < spec_.outputs.size(); ++i)
    if (outputs[i].defined() && outputs[i].scalar_type() == spec_.options.precision &&
        floating(spec_.outputs[i]))
      outputs[i] = outputs[i].to(spec_.outputs[i].type);
  return outputs;
}

// Integer buffers (num_batches_tracked) count forwards, of which a rank runs more or fewer by the
// layout. They get their old values back, so they can depend on nothing but the model.
std::vector<at::Tensor> AutogradSegment::call_keeping_counters(const Pass& pass, Tensors parameters,
                                                               Tensors inputs) const {
  NamedTensors before;
  if (spec_.buffers)
    for (auto& [name, buffer] : spec_.buffers())
      if (!at::isFloatingType(buffer.scalar_type()))
        before.emplace_back(std::move(name), buffer.detach().clone());
  auto outputs = call(pass, parameters, inputs);

  // Buffers are looked up again by name, since forward may have replaced the tensors.
  if (before.empty()) return outputs;
  for (const auto& [name, buffer] : spec_.buffers())
    for (const auto& [old_name, old] : before)
      if (name == old_name && !at::equal(buffer, old)) buffer.set_data(old);
  return outputs;
}

std::vector<at::Tensor> AutogradSegment::checked_call(const Pass& pass, Tensors parameters,
                                                      Tensors inputs) const {
  // Float buffers that the block did not declare must be the same after forward.
  const auto undeclared = [&] {
    NamedTensors all;
    if (!spec_.buffers) return all;
    for (auto& [name, buffer] : spec_.buffers())
      if (at::isFloatingType(buffer.scalar_type()) &&
          std::find(spec_.declared.begin(), spec_.declared.end(), name) == spec_.declared.end())
        all.emplace_back(name, buffer);
    return all;
  };
  NamedTensors before;
  {
    // These copies must not show in what the dry run measures.
    AllocationScope uncounted;
    for (auto& [name, buffer] : undeclared()) before.emplace_back(name, buffer.detach().clone());
  }
  const DrawWatch watch(device_of(parameters, inputs));
  auto outputs = call_keeping_counters(pass, parameters, inputs);
  // Values are compared and not version counters, because batch norm's kernels write running
  // statistics without raising them.
  const auto after = undeclared();
  for (size_t i = 0; i < after.size(); ++i)
    if (i >= before.size() || !at::equal(before[i].second, after[i].second))
      throw Error(fmt::format(
          "segment {}: buffer {} changed in forward, and nothing says how the changes of all lanes "
          "are to be joined; declare it in AdaptOptions::buffers (batch norm's statistics are "
          "Role::kMeanBuffer), or use a layer without running statistics "
          "(track_running_stats(false), "
          "LayerNorm, GroupNorm)",
          spec_.name, after[i].first));

  // A draw that nobody reseeds would depend on what the process drew before, so on the layout.
  if (!spec_.options.draws && watch.drew())
    throw Error(fmt::format(
        "segment {} draws from torch's generator; say so with AdaptOptions::draws, so that it is "
        "reseeded for every micro-batch",
        spec_.name));
  return outputs;
}

// The tensors that forward works on. Buffers are copied, because what forward does to them must not
// be seen before the commit. Without a `bind` of the block's own, trained parameters become leaves.
std::vector<at::Tensor> AutogradSegment::bound(Tensors parameters, bool training) const {
  std::vector<at::Tensor> values(parameters.begin(), parameters.end());
  for (size_t i = 0; i < values.size(); ++i)
    if (role(i) != Role::kTrained) values[i] = values[i].detach().clone();
  if (spec_.bind) return spec_.bind(values);
  for (size_t i = 0; i < values.size(); ++i)
    if (role(i) == Role::kTrained) {
      // The weight part may run when the unit's values are gone. Of one layer, its walk reads
      // parameters of one dim (a norm's) and no others.
      const bool copied = spec_.options.splits && training && values[i].dim() == 1;
      values[i] = leaf(copied ? values[i].detach().clone() : values[i], training);
    }
  return values;
}

// What a micro-batch proposes for each buffer. `before` are the unit's values, `bound` what forward
// worked on; a module may have put other tensors in their place, which are found by name.
std::vector<at::Tensor> AutogradSegment::proposals(Tensors bound, Tensors before) const {
  std::vector<at::Tensor> all(bound.size());
  if (spec_.roles.empty()) return all;
  const NamedTensors buffers = spec_.buffers ? spec_.buffers() : NamedTensors();
  size_t declared = 0;
  for (size_t i = 0; i < bound.size(); ++i) {
    if (role(i) == Role::kTrained) continue;
    at::Tensor now = bound[i];
    if (spec_.buffers) {
      const std::string& name = spec_.declared[declared++];
      for (const auto& [buffer_name, buffer] : buffers)
        if (buffer_name == name) now = buffer;
      if (now.sizes() != before[i].sizes() || now.scalar_type() != at::kFloat)
        throw Error(fmt::format("segment {}: buffer {} got another shape or type in forward",
                                spec_.name, name));
    }

    // A mean is taken of values, a sum of changes.
    all[i] = role(i) == Role::kMeanBuffer ? now.detach() : now.detach() - before[i];
  }
  return all;
}

// Calls the function, the first time in training with all checks. Those wait for the device, which
// is why the first pass is never captured.
std::vector<at::Tensor> AutogradSegment::run(const Pass& pass, Tensors parameters,
                                             Tensors inputs) const {
  std::vector<at::Tensor> outputs;
  bool called = false;
  if (pass.training)
    std::call_once(checked_, [&] {
      outputs = checked_call(pass, parameters, inputs);
      called = true;
    });
  return called ? outputs : call_keeping_counters(pass, parameters, inputs);
}

// The gradient of the loss's (sum, count): (1, 0), or (scale, 0) in the device's memory.
at::Tensor AutogradSegment::loss_gradient(const Context& context, at::Device device) const {
  if (context.loss_scale != nullptr) return view_on(device, context.loss_scale, {2}, at::kDouble);
  return unscaled_.on(device);
}

void AutogradSegment::forward(Context& context, Tensors in, Tensors out) const {
  const bool training = context.pass.training;
  auto graph = std::make_shared<Graph>();
  {
    at::AutoGradMode mode(training);
    const Tensors parameters = context.parameters.subspan(spec_.first_parameter, spec_.parameters);
    graph->parameters = bound(parameters, training);
    for (const at::Tensor& x : in) graph->inputs.push_back(leaf(x, training));
    graph->outputs = run(context.pass, graph->parameters, graph->inputs);
    if (training) graph->proposals = proposals(graph->parameters, parameters);
  }

  // Outputs are copied into the plan's buffers. One that is passed on is there already.
  check_outputs(spec_.name, spec_.outputs, graph->outputs);
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < out.size(); ++i)
    if (spec_.outputs[i].same_as.empty()) out[i].copy_(graph->outputs[i]);
  context.kept = training ? std::move(graph) : nullptr;
}

// The gradients of `leaves`, undefined for a leaf on which no output depends. `again` keeps the
// graph for a second walk.
std::vector<at::Tensor> AutogradSegment::differentiate(const Context& context, const Graph& graph,
                                                       Tensors grad_out, Tensors leaves,
                                                       bool again) const {
  // Roots are the outputs that have a gradient: from the next segment, or the loss's own.
  std::vector<at::Tensor> roots, root_grads;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (!graph.outputs[i].requires_grad()) continue;
    at::Tensor grad = grad_out[i];
    if (!grad.defined() && spec_.outputs[i].name == "loss")
      grad = loss_gradient(context, graph.outputs[i].device());
    if (!grad.defined()) continue;
    roots.push_back(graph.outputs[i]);
    root_grads.push_back(grad);
  }
  std::vector<at::Tensor> grads(leaves.size());
  if (!roots.empty() && !leaves.empty())
    grads = torch::autograd::grad(roots, {leaves.begin(), leaves.end()}, root_grads,
                                  /*retain_graph=*/again,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  // Autograd may return grad_out itself as a gradient, and grad_in may be grad_out's memory. Such a
  // gradient is copied, or writing another one before it would destroy it.
  for (at::Tensor& grad : grads)
    if (grad.defined() && aliases_any(grad, grad_out)) grad = grad.clone();
  return grads;
}

std::vector<at::Tensor> AutogradSegment::trained(const Graph& graph) const {
  std::vector<at::Tensor> leaves;
  for (int i = 0; i < spec_.parameters; ++i)
    if (role(i) == Role::kTrained) leaves.push_back(graph.parameters[i]);
  return leaves;
}

void AutogradSegment::write_parameters(const Context& context, const Graph& graph,
                                       std::span<const at::Tensor> grads) const {
  size_t next = 0;
  for (int i = 0; i < spec_.parameters; ++i)
    write(context.gradients[spec_.first_parameter + i],
          role(i) == Role::kTrained ? grads[next++] : graph.proposals[i]);
}

void AutogradSegment::backward(Context& context, Tensors, Tensors, Tensors grad_out,
                               Tensors grad_in) const {
  TUTTI_CHECK(context.kept != nullptr, "backward of segment {} without its forward", spec_.name);
  const auto graph = std::static_pointer_cast<Graph>(std::exchange(context.kept, nullptr));

  // One walk for both: parameters first, then the inputs whose gradients are wanted.
  std::vector<at::Tensor> leaves = trained(*graph);
  const size_t parameters = leaves.size();
  for (at::Tensor& input : wanted(graph->inputs, grad_in)) leaves.push_back(std::move(input));
  const auto grads = differentiate(context, *graph, grad_out, leaves, false);
  at::NoGradGuard no_grad;
  write_parameters(context, *graph, std::span(grads).first(parameters));
  write_inputs(grad_in, std::span(grads).subspan(parameters));
}

// The outputs' gradients, from which the weight part starts its own walk.
int64_t AutogradSegment::deferred_bytes() const {
  int64_t bytes = 0;
  if (spec_.parameters > 0)
    for (const Border& out : spec_.outputs) bytes += align_up(border_bytes(out), kDeferredAlign);
  return bytes;
}

void AutogradSegment::backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                                     Tensors grad_in) const {
  if (spec_.parameters == 0) return backward(context, in, out, grad_out, grad_in);
  TUTTI_CHECK(context.kept != nullptr, "backward of segment {} without its forward", spec_.name);
  Graph& graph = *std::static_pointer_cast<Graph>(context.kept);

  // grad_out's buffers are overwritten before the weight part runs, so the gradients are copied.
  at::NoGradGuard no_grad;
  std::byte* memory = context.deferred.data();
  for (size_t i = 0; i < grad_out.size(); ++i) {
    at::Tensor& kept = graph.grad_out.emplace_back();
    if (grad_out[i].defined()) {
      kept = view_on(grad_out[i].device(), memory, grad_out[i].sizes(), grad_out[i].scalar_type());
      kept.copy_(grad_out[i]);
    }
    memory += align_up(border_bytes(spec_.outputs[i]), kDeferredAlign);
  }

  // The graph is kept for the weight part.
  write_inputs(grad_in,
               differentiate(context, graph, grad_out, wanted(graph.inputs, grad_in), true));
}

void AutogradSegment::backward_weight(Context& context, Tensors, Tensors) const {
  if (spec_.parameters == 0) return;
  TUTTI_CHECK(context.kept != nullptr, "weight part of segment {} without its forward", spec_.name);
  const auto graph = std::static_pointer_cast<Graph>(std::exchange(context.kept, nullptr));
  const auto grads = differentiate(context, *graph, graph->grad_out, trained(*graph), false);
  at::NoGradGuard no_grad;
  write_parameters(context, *graph, grads);
}

}  // namespace tutti
