// Loads a TorchScript module and finds out by a trial pass what its author could have declared:
// buffers that change, and draws. Every fault of the file becomes an Error that names it.
#include "model/adapt/script.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text/message.h"
#include "config/job_parts.h"
#include "model/adapt/adaptor.h"
#include "model/adapt/draw_watch.h"
#include "model/core/data_borders.h"
#include "model/core/wiring.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw Error(fmt::format("model.path = \"{}\": {}", path, why));
}

// Runs `f`. What it throws becomes an Error that names the file.
template <typename F>
auto naming(const std::string& path, const char* what, F&& f) {
  try {
    return f();
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    // such a text is about torch's source and says nothing about the file
    const bool internal = said.find("INTERNAL ASSERT") != std::string::npos;
    fail(path, fmt::format("{}: {}", what, internal ? "LibTorch makes nothing of it" : said));
  } catch (const std::exception& error) {
    fail(path, fmt::format("{}: {}", what, message_of(error)));
  }
}

// Loads onto the CPU; the parameters become views of the unit, which may be on a device.
torch::jit::Module load(const std::string& path) {
  if (path.empty())
    throw Error("model.path is empty but model.kind = \"script\": name a TorchScript file");
  if (!is_file(path)) fail(path, "there is no such file");
  auto module =
      naming(path, "is no TorchScript file", [&] { return torch::jit::load(path, at::kCPU); });
  if (!module.find_method("forward")) fail(path, "its module has no method forward");
  return module;
}

NamedTensors buffers_of(const torch::jit::Module& module) {
  NamedTensors buffers;
  for (const auto& item : module.named_buffers())
    if (item.value.defined()) buffers.emplace_back(item.name, item.value);
  return buffers;
}

// Runs the module as it is written. The profiling executor is off: it rewrites the graph after the
// first runs, gradients included, and nothing promises that a rank's first micro-batches and its
// later ones then get the same bits.
at::Tensor run(torch::jit::Module& module, const std::string& path, const Border& output,
               bool training, const at::Tensor& input) {
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  if (module.is_training() != training) module.train(training);
  const c10::IValue result =
      naming(path, "forward failed", [&] { return module.forward({input}); });
  if (!result.isTensor())
    fail(path, fmt::format("forward returned {}, not a tensor", result.tagKind()));
  at::Tensor tensor = result.toTensor();
  // Under autocast the result has the narrow type.
  if (!tensor.is_cpu() && at::isFloatingType(tensor.scalar_type())) tensor = tensor.to(output.type);
  const Border got{output.name, tensor.sizes().vec(), tensor.scalar_type()};
  if (got.dims != output.dims || got.type != output.type)
    fail(path,
         fmt::format("forward returned {}; the job wants {}", to_string(got), to_string(output)));
  return tensor;
}

// Finds by a training pass over made-up inputs which float buffers change and whether it draws.
// Leaves the module's values as they were.
AdaptOptions looked_at(torch::jit::Module& module, const std::string& path, const Border& input,
                       const Border& output) {
  AdaptOptions options;
  at::NoGradGuard no_grad;
  NamedTensors before;
  for (const auto& [name, buffer] : buffers_of(module)) before.emplace_back(name, buffer.clone());

  // Values that all differ, so that statistics of them move.
  int64_t size = 1;
  for (int64_t d : input.dims) size *= d;
  const at::Tensor made_up = at::arange(size, at::kFloat).mul(0.7).sin().reshape(input.dims);
  {
    const DrawWatch watch;
    run(module, path, output, true, made_up);
    options.draws = watch.drew();
  }

  // Every changed buffer gets its values back; only changed floats need a role.
  const NamedTensors after = buffers_of(module);
  for (size_t i = 0; i < after.size(); ++i) {
    if (at::equal(before[i].second, after[i].second)) continue;
    after[i].second.set_data(before[i].second);
    if (at::isFloatingType(after[i].second.scalar_type()))
      options.buffers[after[i].first] = Role::kMeanBuffer;
  }
  return options;
}

Task task_of(const Job& job) {
  if (targets_are_classes(job)) return Task::kClasses;
  return loss_part(job).yes_or_no ? Task::kBinary : Task::kValues;
}

}  // namespace

Model make_script(const Job& job) {
  const std::string& path = job.model.path;
  torch::jit::Module module = load(path);
  Model model;
  model.data = data_borders(job);
  model.task = task_of(job);
  const Border output{"logits",
                      {job.train.micro_batch_size,
                       targets_are_classes(job) ? job.model.classes : job.model.outputs}};

  // What the file brings: parameters by name, and a function that runs the module on them.
  ModuleState state;
  for (const auto& item : module.named_parameters())
    state.parameters.emplace_back(item.name, item.value);
  if (state.parameters.empty())
    fail(path, "its module has no parameters to train (a frozen one keeps none)");
  AdaptOptions options = looked_at(module, path, model.data[0], output);
  options.precision = compute_type(job);
  if (!buffers_of(module).empty()) state.buffers = [module] { return buffers_of(module); };
  TensorFunction function = [module, path, output](const Pass& pass, Tensors, Tensors in) mutable {
    return std::vector<at::Tensor>{run(module, path, output, pass.training, in[0])};
  };

  // Unlike a torch::nn module's, a file's values are part of the job: training starts with them.
  const auto init = [](const std::string&, const at::Tensor& tensor) { return given_init(tensor); };
  Block block = naming(path, "cannot be trained", [&] {
    return stateful_block("script", state, std::move(function), init, {model.data[0]}, {output},
                          std::move(options));
  });

  // The loss is a segment of the same block, so that the script is one block for the plan.
  block.segments.push_back(loss_segment(job, output, model.data));
  model.check = class_check(job, output, model.data);
  model.blocks.push_back(std::move(block));
  return model;
}

}  // namespace tutti
