// Chooses the loss that a job names. Losses of classes are one segment by hand (class_loss.h), as
// are those of values on the CPU (value_loss.h); elsewhere these are ATen's functions under autograd.
#include "model/loss/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/portable_math.h"
#include "config/job_parts.h"
#include "model/adapt/adaptor.h"
#include "model/core/by_hand.h"
#include "model/core/wiring.h"
#include "model/loss/class_loss.h"
#include "model/loss/value_loss.h"

namespace tutti {

namespace {

// The loss of every element.
using Elementwise = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& targets)>;

/// A loss of values of the table in config/job_parts.cc, element by element: for the CPU, and as a
/// function of tensors for GPUs.
struct ValueLoss {
  std::string_view name;
  ElementLoss element;
  Elementwise (*make)(const LossConfig& config);
};

/// Zero for zero, NaN for NaN.
double sign(double x) { return x == 0 || std::isnan(x) ? x : std::copysign(1.0, x); }

constexpr auto kEach = at::Reduction::None;
constexpr ValueLoss kValueLosses[] = {
    {"mse",
     {[](double x, double t, const LossConfig&) { return (x - t) * (x - t); },
      [](double x, double t, const LossConfig&) { return 2 * (x - t); }},
     [](const LossConfig&) -> Elementwise {
       return [](const auto& x, const auto& t) { return at::mse_loss(x, t, kEach); };
     }},
    {"mae",
     {[](double x, double t, const LossConfig&) { return std::abs(x - t); },
      [](double x, double t, const LossConfig&) { return sign(x - t); }},
     [](const LossConfig&) -> Elementwise {
       return [](const auto& x, const auto& t) { return at::l1_loss(x, t, kEach); };
     }},
    {"huber",
     {[](double x, double t, const LossConfig& config) {
        const double off = std::abs(x - t), delta = config.delta;
        return off < delta ? 0.5 * off * off : delta * (off - 0.5 * delta);
      },
      [](double x, double t, const LossConfig& config) {
        return std::clamp(x - t, -config.delta, config.delta);
      }},
     [](const LossConfig& config) -> Elementwise {
       return [delta = config.delta](const auto& x, const auto& t) {
         return at::huber_loss(x, t, kEach, delta);
       };
     }},
    // -t log p - (1 - t) log(1 - p) of the logit x, in a form that neither overflows nor cancels.
    {"bce",
     {[](double x, double t, const LossConfig&) {
        return std::max(x, 0.0) - x * t + portable::log1p(portable::exp(-std::abs(x)));
      },
      [](double x, double t, const LossConfig&) { return 1 / (1 + portable::exp(-x)) - t; }},
     [](const LossConfig&) -> Elementwise {
       return [](const auto& x, const auto& t) {
         return at::binary_cross_entropy_with_logits(x, t, {}, {}, kEach);
       };
     }},
};

/// Null for a loss of classes.
const ValueLoss* value_loss(const LossConfig& config) {
  for (const ValueLoss& loss : kValueLosses)
    if (loss.name == config.kind) return &loss;
  return nullptr;
}

const ValueLoss& loss_of_values(const LossConfig& config) {
  const ValueLoss* row = value_loss(config);
  if (row == nullptr)
    throw Error(fmt::format("loss.kind = \"{}\" is no loss of values", config.kind));
  return *row;
}

/// A loss of classes of the same table, from what class_spec() found in the job.
struct ClassLoss {
  std::string_view name;
  std::unique_ptr<Segment> (*make)(const LossConfig& config, ClassLossSpec spec);
};

std::unique_ptr<Segment> cross_entropy(const LossConfig&, ClassLossSpec spec) {
  return class_loss(std::move(spec));
}

/// A teacher is added where the model is prepared (infer/prepare.h), which replaces this segment by
/// distill_segment().
constexpr ClassLoss kClassLosses[] = {{"cross-entropy", cross_entropy}, {"distill", cross_entropy}};

/// A loss that is still open is the plain one of classes.
const ClassLoss& class_loss_named(std::string_view kind) {
  if (is_open(kind)) kind = first_where<LossPart>([](const LossPart& loss) { return loss.plain; });
  for (const ClassLoss& loss : kClassLosses)
    if (loss.name == kind) return loss;
  throw Error(fmt::format("loss.kind = \"{}\" is not known", kind));
}

const Border& find(const std::vector<Border>& data, const std::string& name) {
  for (const Border& border : data)
    if (border.name == name) return border;
  throw Error(fmt::format("the loss wants {}, which the data does not have", name));
}

// Values are compared element by element, so shapes and types must be equal.
void check_same(const std::string& kind, const Border& output, const Border& targets) {
  if (output.dims != targets.dims || output.type != at::kFloat || targets.type != at::kFloat)
    throw Error(fmt::format("loss.kind = \"{}\" of {} needs float targets of the same dims, not {}",
                            kind, to_string(output), to_string(targets)));
}

// The sum over the elements with a target, and their number. Targets of the others are replaced
// before the loss is computed, since a gradient of zero times NaN would be NaN.
at::Tensor summed(const Elementwise& loss, const at::Tensor& output, const at::Tensor& targets,
                  const at::Tensor& valid) {
  const at::Tensor losses = loss(output, at::where(valid, targets, 0.0)).to(at::kDouble);
  return at::stack({at::where(valid, losses, 0.0).sum(), valid.to(at::kDouble).sum()});
}

// A loss needs no AdaptOptions but that it may be captured: it has no parameters and draws nothing.
std::unique_ptr<Segment> autograd_loss(std::string name, std::vector<Border> inputs,
                                       TensorFunction function) {
  AutogradSegment::Spec spec;
  spec.name = std::move(name);
  spec.inputs = std::move(inputs);
  spec.outputs = {{"loss", {2}, at::kDouble}};
  spec.function = std::move(function);
  spec.options.captures = true;
  return std::make_unique<AutogradSegment>(std::move(spec));
}

// What a class loss reads from the job and its data.
ClassLossSpec class_spec(const Job& job, Border output, const std::vector<Border>& data) {
  ClassLossSpec spec;
  spec.logits = std::move(output);
  spec.targets = find(data, "targets");
  spec.smoothing = job.loss.label_smoothing;
  spec.weights = job.loss.class_weights;
  for (const Border& border : data) spec.mixup = spec.mixup || border.name == "mix";
  spec.data = data;
  return spec;
}

}  // namespace

void check_classes(const at::Tensor& targets, int64_t classes) {
  const at::Tensor all = targets.contiguous();
  const auto* target = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < all.numel(); ++i)
    if (target[i] < kIgnoredTarget || target[i] >= classes)
      throw Error(fmt::format("target {} is not one of the {} classes", target[i], classes));
}

std::function<void(Tensors data)> class_check(const Job& job, const Border& output,
                                              const std::vector<Border>& data) {
  // With a loss of values there are no classes that could be out of range.
  if (value_loss(job.loss) != nullptr) return {};
  std::vector<size_t> places;
  for (size_t i = 0; i < data.size(); ++i)
    if (data[i].name == "targets" || data[i].name == "other_targets") places.push_back(i);
  return [places, classes = output.dims.back()](Tensors tensors) {
    for (const size_t place : places) check_classes(tensors[place], classes);
  };
}

std::unique_ptr<Segment> cross_entropy_segment(Border logits, Border targets) {
  ClassLossSpec spec;
  spec.logits = std::move(logits);
  spec.targets = std::move(targets);
  return class_loss(std::move(spec));
}

Block cross_entropy_block(std::string name, Border logits, Border targets) {
  Block block;
  block.name = std::move(name);
  block.segments.push_back(cross_entropy_segment(std::move(logits), std::move(targets)));
  return block;
}

ElementLoss element_loss(const LossConfig& config) { return loss_of_values(config).element; }

TensorFunction reconstruction_loss(const LossConfig& config) {
  return [loss = loss_of_values(config).make(config)](const Pass&, Tensors, Tensors in) {
    // One flag per row of padding, seen as one per element.
    std::vector<int64_t> rows(static_cast<size_t>(in[0].dim()), 1);
    rows[0] = in[0].size(0);
    const at::Tensor valid = in[2].ne(kIgnoredTarget).reshape(rows).expand_as(in[0]);
    return std::vector<at::Tensor>{summed(loss, in[0], in[1].detach(), valid)};
  };
}

std::vector<std::string> loss_names() {
  std::vector<std::string> names = row_names(kValueLosses);
  for (const std::string& name : row_names(kClassLosses)) names.push_back(name);
  return names;
}

std::unique_ptr<Segment> loss_segment(const Job& job, Border output,
                                      const std::vector<Border>& data) {
  const std::string& kind = job.loss.kind;

  // Losses of values mark a missing target by NaN.
  if (const ValueLoss* row = value_loss(job.loss)) {
    const Border& targets = find(data, "targets");
    check_same(kind, output, targets);
    if (by_hand(job)) return make_value_loss(row->element, job.loss, std::move(output), targets);
    return autograd_loss(kind, {std::move(output), targets},
                         [loss = row->make(job.loss)](const Pass&, Tensors, Tensors in) {
                           return std::vector<at::Tensor>{
                               summed(loss, in[0], in[1], at::isnan(in[1]).logical_not())};
                         });
  }
  const ClassLoss& of_classes = class_loss_named(kind);
  return of_classes.make(job.loss, class_spec(job, std::move(output), data));
}

std::unique_ptr<Segment> distill_segment(const Job& job, Border output,
                                         const std::vector<Border>& data, Teacher teacher) {
  ClassLossSpec spec = class_spec(job, std::move(output), data);
  spec.teacher = std::move(teacher);
  spec.temperature = job.loss.temperature;
  spec.mix = job.loss.mix;
  return class_loss(std::move(spec));
}

}  // namespace tutti
