// What adapting a torch::nn module takes that does not depend on its type: its state by name, and a
// function that calls it.
#include "model/adapt/module.h"

namespace tutti {

Block adapt_module(std::string name, const std::shared_ptr<torch::nn::Module>& module,
                   ModuleCall call, std::vector<Border> in, std::vector<Border> out,
                   AdaptOptions options) {
  ModuleState state;
  for (const auto& item : module->named_parameters())
    state.parameters.emplace_back(item.key(), item.value());
  if (!module->named_buffers().is_empty())
    state.buffers = [module] {
      NamedTensors buffers;
      for (const auto& item : module->named_buffers())
        if (item.value().defined()) buffers.emplace_back(item.key(), item.value());
      return buffers;
    };

  // The function ignores the parameters that it is given: stateful_block has bound the module's own
  // to the unit's memory. train() walks all submodules, so it is called only when the mode changes.
  TensorFunction function = [module, call = std::move(call)](const Pass& pass, Tensors,
                                                             Tensors inputs) {
    if (module->is_training() != pass.training) module->train(pass.training);
    return call(inputs);
  };
  const auto init = [](const std::string& key, const at::Tensor& t) {
    return default_init(key, t.sizes().vec());
  };
  return stateful_block(std::move(name), state, std::move(function), init, std::move(in),
                        std::move(out), std::move(options));
}

}  // namespace tutti
