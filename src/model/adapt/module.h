// Turns any torch::nn module into a block. Includes only torch's module base; <tutti/nn.h> brings
// the layers themselves.
#pragma once

#include <torch/nn/module.h>

#include <tuple>

#include "base/error.h"
#include "model/adapt/adaptor.h"

namespace tutti {

/// A module's forward, with its arguments and results as lists.
using ModuleCall = std::function<std::vector<at::Tensor>(Tensors inputs)>;

/// The part of adapt() that does not depend on the module's type.
Block adapt_module(std::string name, const std::shared_ptr<torch::nn::Module>& module,
                   ModuleCall call, std::vector<Border> in, std::vector<Border> out,
                   AdaptOptions options);

namespace module_detail {

// A module returns a tensor, a vector or a tuple of them; as_list makes one list of each.
inline std::vector<at::Tensor> as_list(at::Tensor tensor) { return {std::move(tensor)}; }
inline std::vector<at::Tensor> as_list(std::vector<at::Tensor> tensors) { return tensors; }
template <typename... T>
std::vector<at::Tensor> as_list(std::tuple<T...> tensors) {
  return std::apply([](auto&&... t) { return std::vector<at::Tensor>{std::move(t)...}; },
                    std::move(tensors));
}

// Calls forward with exactly as many arguments as there are inputs, if it takes that many.
template <typename M, size_t... I>
std::vector<at::Tensor> call_with(M& module, Tensors in, std::index_sequence<I...>) {
  if constexpr (requires { as_list(module.forward(in[I]...)); })
    return as_list(module.forward(in[I]...));
  else
    throw Error(fmt::format("{}::forward does not take {} tensors", module.name(), sizeof...(I)));
}

template <typename M>
std::vector<at::Tensor> call(M& module, Tensors in) {
  switch (in.size()) {
    case 1:
      return call_with(module, in, std::make_index_sequence<1>());
    case 2:
      return call_with(module, in, std::make_index_sequence<2>());
    case 3:
      return call_with(module, in, std::make_index_sequence<3>());
    case 4:
      return call_with(module, in, std::make_index_sequence<4>());
    default:
      throw Error(
          fmt::format("{}: a module takes one to four tensors, not {}", module.name(), in.size()));
  }
}

}  // namespace module_detail

/// A block of one segment from a module whose forward takes one to four tensors and returns a
/// tensor, a tuple or a vector of them, in the order of `in` and `out`. Parameters keep the
/// module's names, but not its values: they start as options.init or default_init say, keyed by the
/// job's seed, because the module's own values come from torch's generator. From the first pass on,
/// the module's parameters are views of the unit's memory, so the module belongs to the block and
/// to one rank. Throws Error for parameters that are not float32 or are frozen. Buffers that change
/// in forward must be declared in options.buffers, except integers (num_batches_tracked), which
/// keep their first value.
template <typename M>
  requires std::is_base_of_v<torch::nn::Module, M>
Block adapt(std::string name, std::shared_ptr<M> module, std::vector<Border> in,
            std::vector<Border> out, AdaptOptions options = {}) {
  ModuleCall call = [module](Tensors inputs) { return module_detail::call(*module, inputs); };
  return adapt_module(std::move(name), module, std::move(call), std::move(in), std::move(out),
                      std::move(options));
}

/// The same for torch's holders: torch::nn::Linear, torch::nn::Sequential, ...
template <typename M>
Block adapt(std::string name, const torch::nn::ModuleHolder<M>& holder, std::vector<Border> in,
            std::vector<Border> out, AdaptOptions options = {}) {
  return adapt(std::move(name), holder.ptr(), std::move(in), std::move(out), std::move(options));
}

}  // namespace tutti
