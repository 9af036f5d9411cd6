// Turns a function of tensors into a segment. Autograd runs inside the segment, from its inputs to
// its outputs, and ends there. Modules of torch::nn come through model/adapt/module.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "model/core/device_tensor.h"
#include "model/core/segment.h"

namespace tutti {

struct Job;

/// What the author of a block says about its function or module.
struct AdaptOptions {
  /// How parameters start, by name within the block ("0.weight"). Names that no parameter
  /// has are refused. Parameters that are not named start as their Parameter says, a
  /// module's by default_init.
  std::map<std::string, Init> init;
  /// Whether it draws from torch's generator (dropout). The generator is then reseeded by (seed,
  /// step, lane, micro-batch, block) before every forward, so pass.step must be the step's, on a
  /// device too. Refused where ranks are threads. A function that draws without saying so is
  /// refused on its first training pass.
  bool draws = false;
  /// The float buffers of a module that change in forward, and how the changes of all
  /// micro-batches are joined: by name within the block ("1.running_mean"), or one entry "*" for
  /// all of them. They become parameters of the block with that role, which start with the
  /// module's values. Names that no buffer has are refused. (A function has its buffers among its
  /// Parameters, with a role.)
  std::map<std::string, Role> buffers;
  /// On a GPU: whether it may be captured once and launched again. It may if it neither waits for
  /// the device, nor decides by values that it computed, nor keeps tensors of its own that change.
  /// It has no effect where the function draws or has a module's buffers.
  bool captures = false;
  /// On a GPU: the type in which matmuls and convolutions of forward and backward take their inputs
  /// (ATen's autocast). Borders and parameters are float32 all the same.
  at::ScalarType precision = at::kFloat;
  double flops = 0;  ///< forward, per micro-batch
  /// Whether backward may run in two parts. The weight part walks the graph a second time for the
  /// parameters' gradients, when the parameters' values may be gone. Only parameters of one dim (a
  /// norm's) are copied in forward, so this may only be said of a single layer, whose weights no
  /// other gradient needs. Without parameters there is no weight part.
  bool splits = false;
};

/// The options of the built-in models: they may be captured and run in the job's precision.
AdaptOptions built_in_options(const Job& job);
/// The type that numerics.precision names.
at::ScalarType compute_type(const Job& job);

/// (pass, the parameters it uses, inputs) -> outputs. In training the parameters and floating
/// inputs require gradients. A parameter that is a buffer comes as a copy: what the function makes
/// of it in place is its proposal.
using TensorFunction =
    std::function<std::vector<at::Tensor>(const Pass&, Tensors parameters, Tensors inputs)>;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A function under autograd. It uses parameters [first, first + count) of its block and writes
/// exactly their gradients: zeros where the loss does not depend on one; for a buffer, what forward
/// made of it (kMeanBuffer) or by how much it changed it (kSumBuffer). Belongs to one rank; must
/// not be run by two threads at once.
class AutogradSegment final : public Segment {
 public:
  struct Spec {
    std::string name;
    std::vector<Border> inputs, outputs;
    int first_parameter = 0, parameters = 0;
    TensorFunction function;
    /// Turns views of the unit's memory (of buffers: copies) into the tensors to differentiate by.
    /// If not given, these are fresh leaves over the same memory.
    std::function<std::vector<at::Tensor>(Tensors parameters)> bind;
    /// All buffers of a module by name. Integers get their old values back after every forward.
    /// Floats that are not declared must stay as they are, which is checked in the first
    /// training pass.
    std::function<NamedTensors()> buffers;
    std::vector<Role> roles;  ///< of the parameters it uses; empty: all are trained
    /// with `buffers`: the names there of those parameters that have a role, in order
    std::vector<std::string> declared;
    AdaptOptions options;
  };
  explicit AutogradSegment(Spec spec);

  std::string name() const override { return spec_.name; }
  std::vector<Border> inputs() const override { return spec_.inputs; }
  std::vector<Border> outputs() const override { return spec_.outputs; }
  double flops() const override { return spec_.options.flops; }
  bool draws() const override { return spec_.options.draws; }
  bool by_torch() const override { return true; }
  bool captures() const override {
    return spec_.options.captures && !spec_.options.draws && !spec_.buffers;
  }
  /// Throws Error naming the segment if the function returns other tensors than declared, changes a
  /// buffer that is not declared, or draws without having said so.
  void forward(Context& context, Tensors in, Tensors out) const override;
  void backward(Context& context, Tensors in, Tensors out, Tensors grad_out,
                Tensors grad_in) const override;
  bool splits() const override { return spec_.options.splits || spec_.parameters == 0; }
  /// Room for the outputs' gradients.
  int64_t deferred_bytes() const override;
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override;
  void backward_weight(Context& context, Tensors in, Tensors out) const override;

 private:
  struct Graph;
  std::vector<at::Tensor> differentiate(const Context& context, const Graph& graph,
                                        Tensors grad_out, Tensors leaves, bool again) const;
  std::vector<at::Tensor> trained(const Graph& graph) const;
  void write_parameters(const Context& context, const Graph& graph,
                        std::span<const at::Tensor> grads) const;
  std::vector<at::Tensor> call(const Pass& pass, Tensors parameters, Tensors inputs) const;
  std::vector<at::Tensor> checked_call(const Pass& pass, Tensors parameters, Tensors inputs) const;
  std::vector<at::Tensor> call_keeping_counters(const Pass& pass, Tensors parameters,
                                                Tensors inputs) const;
  std::vector<at::Tensor> bound(Tensors parameters, bool training) const;
  std::vector<at::Tensor> proposals(Tensors bound, Tensors before) const;
  std::vector<at::Tensor> run(const Pass& pass, Tensors parameters, Tensors inputs) const;
  at::Tensor loss_gradient(const Context& context, at::Device device) const;
  Role role(size_t parameter) const {
    return spec_.roles.empty() ? Role::kTrained : spec_.roles[parameter];
  }

  Spec spec_;
  DeviceConstant unscaled_;  // the loss's gradient: d(sum) = 1
  mutable std::once_flag checked_;
};

/// A block with one segment of the same name. spec.options.init is applied to the parameters, and
/// their roles become spec.roles.
Block one_segment_block(AutogradSegment::Spec spec, std::vector<Parameter> parameters);

/// A block of one autograd segment from a function of (pass, parameters, inputs).
Block adapt(std::string name, std::vector<Parameter> parameters, TensorFunction function,
            std::vector<Border> in, std::vector<Border> out, AdaptOptions options = {});

/// The same for a function of (parameters, inputs), which does not look at the pass.
template <typename F>
  requires std::is_invocable_r_v<std::vector<at::Tensor>, F, Tensors, Tensors>
Block adapt(std::string name, std::vector<Parameter> parameters, F function, std::vector<Border> in,
            std::vector<Border> out, AdaptOptions options = {}) {
  return adapt(std::move(name), std::move(parameters),
               TensorFunction([f = std::move(function)](const Pass&, Tensors p, Tensors x) {
                 return f(p, x);
               }),
               std::move(in), std::move(out), std::move(options));
}

/// What a module brings as state: parameters by name, then buffers.
struct ModuleState {
  NamedTensors parameters;
  std::function<NamedTensors()> buffers;  ///< its present ones; empty if it has none
};
/// A block of one segment from `state` and a function that reads it. Parameters start as
/// options.init says, else as `init` says; buffers named in options.buffers become parameters that
/// start with their own values. From the first pass on, the parameters are views of the unit's
/// memory. Throws Error for parameters that are not float32 or are frozen, and for buffers that do
/// not exist or are not float32.
Block stateful_block(std::string name, const ModuleState& state, TensorFunction function,
                     const std::function<Init(const std::string& name, const at::Tensor&)>& init,
                     std::vector<Border> in, std::vector<Border> out, AdaptOptions options);

/// The init that starts a parameter with a tensor's own values.
Init given_init(const at::Tensor& values);

/// The init of a parameter for which nobody chose one: He uniform for two or more dims, ones for a
/// "weight" of one dim (a norm's), zeros for the rest.
Init default_init(const std::string& name, const std::vector<int64_t>& dims);

/// ATen runs backward passes for a device on a thread of its own. This runs a first, small one,
/// which gives that thread its CUDA context before a library asks for it and complains.
void start_backward_thread(at::Device device);

}  // namespace tutti
