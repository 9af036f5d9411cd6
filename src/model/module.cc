#include "model/module.h"

#include <algorithm>

#include "model/wiring.h"

namespace tutti {

Block adapt_module(std::string name, const std::shared_ptr<torch::nn::Module>& module, ModuleCall call,
                   std::vector<Border> in, std::vector<Border> out, AdaptOptions options) {
  std::vector<Parameter> parameters;
  std::vector<at::Tensor> tensors;
  for (const auto& item : module->named_parameters()) {
    const at::Tensor& tensor = item.value();
    // One tensor under two names (weights tied inside the module) is one parameter, by its first name.
    if (std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& t) { return t.is_same(tensor); })) continue;
    if (tensor.scalar_type() != at::kFloat)
      throw Error(fmt::format("block {}: parameter {} is {}, not float32", name, item.key(),
                              c10::toString(tensor.scalar_type())));
    if (!tensor.requires_grad())
      throw Error(fmt::format("block {}: parameter {} is frozen; register it as a buffer", name, item.key()));
    parameters.push_back({item.key(), tensor.sizes().vec(), default_init(item.key(), tensor.sizes().vec()), {}});
    tensors.push_back(tensor);
  }

  TensorFunction function = [module, call = std::move(call)](const Pass& pass, Tensors, Tensors inputs) {
    if (module->is_training() != pass.training) module->train(pass.training);
    return call(inputs);
  };
  const int count = static_cast<int>(tensors.size());
  AutogradSegment::Spec spec{name, std::move(in),     std::move(out), 0, count, std::move(function), {},
                             {},   std::move(options)};
  spec.bind = [tensors = std::move(tensors)](Tensors views) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].data_ptr() != views[i].data_ptr()) tensors[i].set_data(views[i]);
    return tensors;
  };
  spec.buffers = [module] {
    std::vector<std::pair<std::string, at::Tensor>> buffers;
    for (const auto& item : module->named_buffers())
      if (item.value().defined()) buffers.emplace_back(item.key(), item.value());
    return buffers;
  };
  return one_segment_block(std::move(spec), std::move(parameters));
}

}  // namespace tutti
