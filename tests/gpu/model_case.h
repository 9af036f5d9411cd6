// The built-in models under autograd as small jobs, with a micro-batch for each, on the CPU and on
// a GPU.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <string>
#include <vector>

#include "gpu/gpu.h"
#include "model/make_model.h"
#include "unit/model/support/named_case.h"

namespace tutti::model_case {

using named_case::resolved;
using named_case::wave;

struct Trial {
  std::string name;
  Job job;  // of the CPU
};

inline Job mlp_job() {
  return resolved(R"(
[model]
kind = "mlp"
inputs = 24
hidden = [40, 24]
classes = 10
activation = "gelu"
init = "he-uniform"
[data]
kind = "points"
[train]
micro_batch_size = 16
)");
}

inline Job cnn_job() {
  return resolved(R"(
[model]
kind = "cnn"
image = [3, 13, 12]
channels = [16, 24]
depth = 1
classes = 10
autograd = true
activation = "silu"
init = "he-normal"
[data]
kind = "idx"
path = "fashion-mnist"
[train]
micro_batch_size = 16
)");
}

inline Job wide_deep_job() {
  return resolved(R"(
[model]
kind = "wide-deep"
embedding = 5
hidden = [24]
activation = "silu"
init = "he-normal"
[data]
kind = "csv"
path = "x.csv"
columns = ["a: number", "b: number", "c: category hash=50", "d: category x|y|z",
           "e: category hash=9", "t: target"]
[train]
micro_batch_size = 64
)");
}

inline Job autoencoder_job() {
  return resolved(R"(
[model]
kind = "autoencoder"
inputs = 24
hidden = [32, 16]
latent = 5
activation = "tanh"
init = "glorot-uniform"
[data]
kind = "points"
[train]
micro_batch_size = 16
)");
}

inline Job gpt_job() {
  Job job = mlp_job();
  ModelConfig& c = job.model;
  c.kind = "gpt";
  c.layers = 2;
  c.width = 32;
  c.heads = 4;
  c.kv_heads = 4;
  c.context = 24;
  c.vocab = 61;
  c.init = InitKind::kNormal;
  c.init_scale = 0.15;
  c.norm = NormKind::kAuto;
  c.positions = Positions::kLearned;
  c.rotary_base = 10000;
  c.bias = true;
  c.autograd = true;
  job.train.micro_batch_size = 4;
  return job;
}

/// Every built-in model that runs through autograd segments, with every norm, activation, pool and
/// loss.
inline std::vector<Trial> trials() {
  std::vector<Trial> all;
  const auto add = [&](std::string name, Job job, const std::function<void(Job&)>& change) {
    change(job);
    all.push_back({std::move(name), std::move(job)});
  };
  for (const std::string norm : {"none", "layer", "rms", "batch"})
    add("mlp norm " + norm + " dropout", mlp_job(),
        [&](Job& j) { j.model.norm = *value_named<NormKind>(norm), j.model.dropout = 0.25; });
  for (const std::string name :
       {"gelu-tanh", "relu", "silu", "tanh", "sigmoid", "leaky-relu", "elu"})
    add("mlp " + name, mlp_job(),
        [&](Job& j) { j.model.activation = *value_named<Activation>(name); });
  add("mlp smoothing", mlp_job(), [](Job& j) { j.loss.label_smoothing = 0.1; });
  add("mlp weights", mlp_job(),
      [](Job& j) { j.loss.class_weights = {1, 2, 0.5, 1, 0, 1, 3, 1, 1, 0.25}; });
  add("mlp mixup", mlp_job(), [](Job& j) { j.augment.mixup = 0.2; });
  add("mlp mixup smoothing weights", mlp_job(), [](Job& j) {
    j.augment.mixup = 0.2;
    j.loss.label_smoothing = 0.2;
    j.loss.class_weights = {1, 2, 0.5, 1, 1, 1, 3, 1, 1, 0.25};
  });
  for (const std::string kind : {"mse", "mae", "huber", "bce"})
    add("mlp " + kind, mlp_job(), [&](Job& j) {
      j.loss.kind = kind, j.loss.delta = 0.5, j.model.outputs = 3,
      j.model.activation = Activation::kTanh;
    });
  for (const std::string norm : {"batch", "group", "layer", "none"})
    for (const bool residual : {false, true})
      for (const std::string pool : {"max", "average"})
        add("cnn " + norm + (residual ? " residual " : " plain ") + pool, cnn_job(), [&](Job& j) {
          j.model.norm = *value_named<NormKind>(norm), j.model.residual = residual,
          j.model.pool = *value_named<Pool>(pool);
          j.model.dropout = residual ? 0.25 : 0;
        });
  add("wide-deep mse", wide_deep_job(), [](Job& j) { j.loss.kind = "mse"; });
  add("wide-deep bce", wide_deep_job(), [](Job& j) { j.loss.kind = "bce"; });
  add("autoencoder", autoencoder_job(), [](Job& j) { j.model.variational = false; });
  add("autoencoder variational", autoencoder_job(), [](Job& j) { j.model.variational = true; });
  add("autoencoder variational bce", autoencoder_job(),
      [](Job& j) { j.model.variational = true, j.loss.kind = "bce"; });
  add("gpt", gpt_job(), [](Job& j) { j.model.dropout = 0.2; });
  add("gpt rotary rms grouped", gpt_job(), [](Job& j) {
    j.model.positions = Positions::kRotary, j.model.norm = NormKind::kRms,
    j.model.activation = Activation::kSwiglu;
    j.model.kv_heads = 2, j.model.bias = false;
  });
  return all;
}

/// One micro-batch in the host's memory. Targets are -1 or NaN in one place, equal ids come often.
inline std::vector<at::Tensor> data_of(const Job& job, const Model& model) {
  std::vector<at::Tensor> data;
  const bool unit = job.model.kind == "autoencoder";
  for (const Border& border : model.data) {
    int64_t size = 1;
    for (const int64_t d : border.dims) size *= d;
    const at::Tensor count = at::arange(size, at::kLong);
    at::Tensor values;
    if (border.name == "tokens") {
      values = (count * 7).remainder(job.model.vocab);
    } else if (border.name == "categories") {
      values = (count * 5).remainder(3);
    } else if (border.name == "mix") {
      values = count.to(at::kFloat).div(static_cast<double>(size));
    } else if (border.name == "targets" || border.name == "other_targets") {
      const int64_t classes = job.model.kind == "gpt" ? job.model.vocab : job.model.classes;
      if (border.type == at::kLong) {
        values = (count * 3 + (border.name == "targets" ? 0 : 1)).remainder(unit ? 2 : classes);
        values[border.name == "targets" ? 1 : 2] = -1;
      } else {
        values = wave({size}, 0.4);
        if (job.loss.kind == "bce") values = values.gt(0).to(at::kFloat);
        values[1] = NAN;
      }
    } else {
      values = wave({size}, 0.1);
      if (unit) values = values * 0.5 + 0.5;
    }
    data.push_back(values.reshape(border.dims).contiguous());
  }
  return data;
}

/// What one forward and backward leave.
struct Result {
  double loss = 0, count = 0;
  std::vector<float> output;
  std::vector<std::string> names;             // of the parameters
  std::vector<std::vector<float>> gradients;  // unscaled
};

/// Gradients of all parameters out of the blocks' buffers; those of trained ones are divided by
/// `scale`.
inline void take_gradients(const ModelShape& shape, const std::vector<std::vector<float>>& blocks,
                           float scale, Result& result) {
  for (size_t b = 0; b < shape.blocks.size(); ++b)
    for (const ParameterShape& p : shape.blocks[b].parameters) {
      std::vector<int64_t> offsets = {p.offset};
      for (const int64_t extra : p.extra_gradients) offsets.push_back(extra);
      for (const int64_t offset : offsets) {
        std::vector<float> values(blocks[b].begin() + offset, blocks[b].begin() + offset + p.size);
        if (p.role == Role::kTrained)
          for (float& value : values) value /= scale;
        result.names.push_back(p.name);
        result.gradients.push_back(std::move(values));
      }
    }
}

inline std::vector<float> floats_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU).to(at::kFloat).contiguous();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel()};
}

constexpr uint64_t kDropoutSeed = 5;
constexpr int64_t kStep = 3, kFirstSample = 40;

inline Result run_on_cpu(FlatModel& flat, const std::vector<at::Tensor>& data) {
  Pass pass;
  pass.seed = kDropoutSeed, pass.step = kStep, pass.first_sample = kFirstSample;
  flat.runner->forward_all(pass, data);
  flat.runner->backward_all(pass, data, flat.gradient_pointers);
  Result result;
  result.loss = flat.runner->loss().sum, result.count = flat.runner->loss().count;
  result.output = floats_of(flat.runner->border(flat.model.output));
  std::vector<std::vector<float>> blocks;
  for (size_t b = 0; b < flat.shape.blocks.size(); ++b)
    blocks.emplace_back(flat.gradient_pointers[b],
                        flat.gradient_pointers[b] + flat.shape.blocks[b].gradient_size);
  take_gradients(flat.shape, blocks, 1, result);
  return result;
}

/// The same parameters on a GPU, in a precision.
class GpuModel {
 public:
  GpuModel(Job job, const std::string& precision, const FlatModel& cpu,
           const std::vector<at::Tensor>& data, Device& device, Stream stream)
      : scale_(precision == "float16" ? 256 : 1),
        keys_(device, stream, std::vector<StepKeys>{{kStep, kFirstSample - 8}}),
        loss_scale_(device, stream, std::vector<double>{scale_, 0}) {
    job.numerics.device = DeviceKind::kCuda;
    job.numerics.precision = *value_named<Precision>(precision);
    model = make_model(job);
    shape_ = describe(model);
    for (size_t b = 0; b < shape_.blocks.size(); ++b) {
      const BlockShape& block = shape_.blocks[b];
      std::vector<float> values(cpu.unit_pointers[b], cpu.unit_pointers[b] + block.unit_size);
      values.resize(std::max<size_t>(values.size(), 1));
      units_.push_back(std::make_unique<GpuArray<float>>(device, stream, values));
      gradients_.push_back(std::make_unique<GpuArray<float>>(
          device, stream, std::max<size_t>(1, block.gradient_size)));
      unit_pointers_.push_back(units_.back()->data());
      gradient_pointers_.push_back(gradients_.back()->data());
    }
    RunnerOptions options;
    options.device = at::Device(at::kCUDA, 0);
    options.memory = &device;
    options.loss_scale = precision == "float16" ? loss_scale_.data() : nullptr;
    runner_ = std::make_unique<ModelRunner>(model, shape_, unit_pointers_, accounts_, options);
    for (const at::Tensor& tensor : data) data_.push_back(tensor.to(at::Device(at::kCUDA, 0)));
    // What the device reads are the keys in its memory.
    pass_.seed = kDropoutSeed, pass_.step = 999, pass_.first_sample = 8, pass_.keys = keys_.data();
  }

  /// Puts forward and backward on the stream.
  void enqueue() {
    runner_->forward_all(pass_, data_);
    runner_->backward_all(pass_, data_, gradient_pointers_);
  }
  void forget_gradients() {
    for (const auto& gradient : gradients_)
      gradient->set(std::vector<float>(gradient->size(), NAN));
  }
  void set_keys(const StepKeys& keys) { keys_.set({keys}); }

  Result result() const {
    Result result;
    const Loss loss = runner_->loss();
    result.loss = loss.sum, result.count = loss.count;
    result.output = floats_of(runner_->border(model.output));
    std::vector<std::vector<float>> blocks;
    for (const auto& gradient : gradients_) blocks.push_back(gradient->get());
    take_gradients(shape_, blocks, static_cast<float>(scale_), result);
    return result;
  }
  Result run() {
    forget_gradients();
    enqueue();
    return result();
  }

  Model model;

 private:
  double scale_;
  GpuArray<StepKeys> keys_;
  GpuArray<double> loss_scale_;
  ModelShape shape_;
  Accounts accounts_;
  std::vector<std::unique_ptr<GpuArray<float>>> units_, gradients_;
  std::vector<float*> unit_pointers_, gradient_pointers_;
  std::vector<at::Tensor> data_;
  Pass pass_;
  std::unique_ptr<ModelRunner> runner_;
};

}  // namespace tutti::model_case
