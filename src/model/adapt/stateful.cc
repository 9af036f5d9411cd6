// Binds the state of a module, of torch::nn or TorchScript, to the memory of its block's unit. The
// module then computes on the unit's values without copies.
#include <algorithm>

#include "base/error.h"
#include "config/nearest.h"
#include "model/adapt/adaptor.h"

namespace tutti {

namespace {

// Names of the float buffers that options.buffers declare, with their roles, in the module's order.
// An exact name goes before "*", which stands for all float buffers.
std::vector<std::pair<std::string, Role>> declared_buffers(const std::string& block,
                                                           const NamedTensors& buffers,
                                                           std::map<std::string, Role> wanted) {
  std::vector<std::pair<std::string, Role>> declared;
  std::vector<std::string> names;
  const auto all = wanted.extract("*");
  for (const auto& [name, buffer] : buffers) {
    names.push_back(name);
    const auto one = wanted.extract(name);
    if (!one && (!all || !at::isFloatingType(buffer.scalar_type()))) continue;
    if (buffer.scalar_type() != at::kFloat)
      throw Error(fmt::format("block {}: buffer {} is {}, not float32", block, name,
                              c10::toString(buffer.scalar_type())));
    const Role role = one ? one.mapped() : all.mapped();
    if (role != Role::kTrained) declared.emplace_back(name, role);
  }

  // Whatever is left names no buffer.
  if (!wanted.empty()) {
    throw Error(fmt::format("block {} has no buffer {}{}", block, wanted.begin()->first,
                            did_you_mean(nearest(wanted.begin()->first, names))));
  }
  return declared;
}

// Buffers that are no views of the unit (undeclared ones, counters) follow the unit to its device.
void move_buffers(const NamedTensors& buffers, at::Device device) {
  for (const auto& [name, buffer] : buffers)
    if (buffer.device() != device) buffer.set_data(buffer.to(device));
}

// Gives a buffer other values. copy_ would not do: an earlier micro-batch's backward may hold the
// buffer, and autograd would notice the change in place.
void replace(const at::Tensor& buffer, const at::Tensor& values) {
  if (!buffer.is_leaf()) buffer.detach_();
  buffer.set_data(values);
}

}  // namespace

Init given_init(const at::Tensor& values) {
  const at::Tensor flat = values.detach().contiguous();
  const float* first = flat.const_data_ptr<float>();
  return {Init::Kind::kGiven, 1,
          std::make_shared<const std::vector<float>>(first, first + flat.numel())};
}

Block stateful_block(std::string name, const ModuleState& state, TensorFunction function,
                     const std::function<Init(const std::string& name, const at::Tensor&)>& init,
                     std::vector<Border> in, std::vector<Border> out, AdaptOptions options) {
  std::vector<Parameter> parameters;
  std::vector<at::Tensor> tensors;
  for (const auto& [key, tensor] : state.parameters) {
    // A tensor under two names (weights tied inside the module) is one parameter, under its
    // first name.
    if (std::any_of(tensors.begin(), tensors.end(),
                    [&](const at::Tensor& t) { return t.is_same(tensor); }))
      continue;
    if (tensor.scalar_type() != at::kFloat)
      throw Error(fmt::format("block {}: parameter {} is {}, not float32", name, key,
                              c10::toString(tensor.scalar_type())));
    if (!tensor.requires_grad())
      throw Error(fmt::format(
          "block {}: parameter {} is frozen; freeze it by train.groups, or make it a buffer", name,
          key));
    parameters.push_back({key, tensor.sizes().vec(), init(key, tensor), {}});
    tensors.push_back(tensor);
  }

  // Declared buffers follow the parameters in the unit, and `bind` below relies on that order.
  AutogradSegment::Spec spec;
  const NamedTensors buffers = state.buffers ? state.buffers() : NamedTensors();
  for (const auto& [key, role] : declared_buffers(name, buffers, options.buffers)) {
    const auto found =
        std::find_if(buffers.begin(), buffers.end(), [&](const auto& b) { return b.first == key; });
    parameters.push_back({key, found->second.sizes().vec(), given_init(found->second), {}, role});
    spec.declared.push_back(key);
  }
  spec.name = std::move(name);
  spec.inputs = std::move(in);
  spec.outputs = std::move(out);
  spec.parameters = static_cast<int>(parameters.size());
  spec.function = std::move(function);
  spec.buffers = state.buffers;
  spec.options = std::move(options);

  // Binds the module's own tensors, which its forward reads, to the unit. set_data is called only
  // when a view has moved: it would cost time in every pass.
  spec.bind = [tensors = std::move(tensors), declared = spec.declared,
               buffers = state.buffers](Tensors views) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (!tensors[i].is_alias_of(views[i])) tensors[i].set_data(views[i]);
    std::vector<at::Tensor> bound = tensors;

    // Buffers are looked up every time, since forward may have replaced them.
    const NamedTensors now = buffers ? buffers() : NamedTensors();
    if (!views.empty()) move_buffers(now, views.front().device());
    for (size_t i = 0; i < declared.size(); ++i)
      for (const auto& [key, buffer] : now)
        if (key == declared[i]) {
          replace(buffer, views[tensors.size() + i]);
          bound.push_back(buffer);
        }
    return bound;
  };
  return one_segment_block(std::move(spec), std::move(parameters));
}

}  // namespace tutti
