// The class loss on a device, where nothing may be decided by a value: every row is computed in
// full, and masks remove what does not count.
#include "model/loss/class_loss_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "device/library.h"

namespace tutti {

namespace {

/// Calls f(kernels, a value of the logits' type) with the kernels for that type.
template <typename F>
void with_kernels(const at::Tensor& logits, F f) {
  const DeviceLibrary& library = device_library();
  switch (logits.scalar_type()) {
    case at::kFloat:
      return f(*library.float32, float{});
    case at::kBFloat16:
      return f(*library.bfloat16, c10::BFloat16{});
    case at::kHalf:
      return f(*library.float16, c10::Half{});
    default:
      throw Error(fmt::format("a class loss of {} logits", c10::toString(logits.scalar_type())));
  }
}

template <class A>
A* data(const at::Tensor& tensor) {
  return static_cast<A*>(tensor.data_ptr());
}

}  // namespace

DeviceClassLoss::DeviceClassLoss(const ClassLossSpec& spec, int64_t rows, int64_t classes)
    : spec_(spec),
      rows_(rows),
      classes_(classes),
      weighted_(
          std::any_of(spec.weights.begin(), spec.weights.end(), [](double w) { return w != 1; })),
      weights_(at::tensor(spec.weights, at::kDouble)),
      columns_(at::arange(classes, at::kLong)) {
  // Without any softening there are kernels that do it in one pass.
  plain_ = spec.smoothing == 0 && !weighted_ && !spec.mixup && !spec.teacher;
}

at::Tensor DeviceClassLoss::matrix(std::span<std::byte> memory, int64_t index,
                                   at::Device device) const {
  const int64_t bytes = (rows_ * classes_ * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
  TUTTI_CHECK(static_cast<int64_t>(memory.size()) >= (index + 1) * bytes,
              "too little memory for the loss");
  return view_on(device, memory.data() + index * bytes, {rows_, classes_}, at::kFloat);
}

// One set of targets; `share` is undefined if it is the only one.
DeviceClassLoss::Part DeviceClassLoss::part(const at::Tensor& targets,
                                            const at::Tensor& share) const {
  Part part;
  part.targets = targets.reshape({rows_});
  part.none = part.targets.eq(kIgnoredTarget);

  // An ignored or wrong target is looked up at a valid place, and its result masked afterwards.
  part.place = part.targets.clamp(0, classes_ - 1);
  const at::Tensor one = part.none.logical_not().to(at::kDouble);
  part.share = share.defined() ? share * one : one;
  part.weight = weights_.on(targets.device()).index_select(0, part.place) * one;
  return part;
}

std::vector<DeviceClassLoss::Part> DeviceClassLoss::parts(const ClassRows& in) const {
  if (!spec_.mixup) return {part(in.targets, {})};

  // A sample's mix holds for all its rows.
  const int64_t samples = spec_.targets.dims[0];
  const at::Tensor mix = in.mix.to(at::kDouble)
                             .reshape({samples, 1})
                             .expand({samples, rows_ / samples})
                             .reshape({rows_});
  return {part(in.targets, 1 - mix), part(in.others, mix)};
}

// What each row adds to the count.
at::Tensor DeviceClassLoss::row_weight(const std::vector<Part>& parts) const {
  at::Tensor sum = parts[0].share * parts[0].weight;
  if (parts.size() > 1) sum = sum + parts[1].share * parts[1].weight;
  return sum;
}

// What the smoothing gives to each class, per row.
at::Tensor DeviceClassLoss::spread(const std::vector<Part>& parts) const {
  const at::Tensor shares = parts.size() > 1 ? parts[0].share + parts[1].share : parts[0].share;
  return shares * (spec_.smoothing / static_cast<double>(classes_));
}

// The hard loss of each row. What does not count is filled with zero and not multiplied by it: a
// probability of zero has no finite logarithm. A target that is no class gives NaN, which the
// step's vote finds.
at::Tensor DeviceClassLoss::hard_loss(const std::vector<Part>& parts,
                                      const at::Tensor& log_p) const {
  at::Tensor loss;
  for (const Part& part : parts) {
    const at::Tensor picked = log_p.gather(1, part.place.unsqueeze(1)).squeeze(1).to(at::kDouble);
    const at::Tensor own = part.share * part.weight * picked * -(1 - spec_.smoothing);
    const at::Tensor kept =
        own.masked_fill(part.none, 0.0)
            .masked_fill(part.targets.ge(classes_).logical_or(part.targets.lt(kIgnoredTarget)),
                         std::numeric_limits<double>::quiet_NaN());
    loss = loss.defined() ? loss + kept : kept;
  }
  if (spec_.smoothing == 0) return loss;
  const at::Tensor all = weighted_ ? (log_p * weights_.on(log_p.device())).sum(1)
                                   : at::sum(log_p, 1, false, at::kDouble);
  const at::Tensor share = spread(parts);
  return loss - (share * all).masked_fill(share.eq(0), 0.0);
}

// T^2 KL(t || p_T) of each row; classes of which t is zero add nothing.
at::Tensor DeviceClassLoss::soft_loss(const Context& context, at::Device device) const {
  const at::Tensor student = matrix(context.saved, 1, device).to(at::kDouble);
  const at::Tensor teacher = matrix(context.saved, 2, device).to(at::kDouble);
  const at::Tensor p = teacher.exp();
  return (p * (teacher - student)).masked_fill(p.eq(0), 0.0).sum(1) *
         (spec_.temperature * spec_.temperature);
}

void DeviceClassLoss::forward(const Context& context, const ClassRows& in, const at::Tensor& taught,
                              const at::Tensor& loss) const {
  const at::Device device = in.logits.device();
  if (plain_)
    return with_kernels(in.logits, [&](const auto& kernels, auto type) {
      kernels.cross_entropy(data<decltype(type)>(in.logits), data<int64_t>(in.targets),
                            reinterpret_cast<float*>(context.saved.data()), data<double>(loss),
                            rows_, classes_);
    });

  // As on the CPU: log p is kept, with a teacher also the distributions at its temperature.
  const at::Tensor logits = in.logits.reshape({rows_, classes_}).to(at::kFloat);
  at::Tensor log_p = matrix(context.saved, 0, device);
  at::log_softmax_out(log_p, logits, 1);

  // The loss scale multiplies what the targets contribute, so no pass of its own is needed.
  const std::vector<Part> columns = parts(in);
  const at::Tensor weight = row_weight(columns);
  at::Tensor each = hard_loss(columns, log_p);
  if (spec_.teacher) {
    at::Tensor student_log_p = matrix(context.saved, 1, device),
               teacher_log_p = matrix(context.saved, 2, device);
    at::log_softmax_out(student_log_p, logits / spec_.temperature, 1);
    const at::Tensor answer = taught.to(logits.options()).reshape({rows_, classes_});
    at::log_softmax_out(teacher_log_p, answer / spec_.temperature, 1);
    const at::Tensor soft = (soft_loss(context, device) * weight).masked_fill(weight.eq(0), 0.0);
    each = each * (1 - spec_.mix) + soft * spec_.mix;
  }
  loss.copy_(at::stack({each.sum(), weight.sum()}));
}

void DeviceClassLoss::backward(const Context& context, const ClassRows& in,
                               const at::Tensor& grad) const {
  const at::Device device = in.logits.device();
  if (plain_)
    return with_kernels(in.logits, [&](const auto& kernels, auto type) {
      using A = decltype(type);
      kernels.cross_entropy_backward(data<A>(in.logits), data<int64_t>(in.targets),
                                     reinterpret_cast<const float*>(context.saved.data()),
                                     context.loss_scale, data<A>(grad), rows_, classes_);
    });
  const std::vector<Part> columns = parts(in);

  const double hard = spec_.teacher ? 1 - spec_.mix : 1;
  const auto scaled = [&](const at::Tensor& x, double factor) {
    const at::Tensor y = x * factor;
    return context.loss_scale == nullptr
               ? y
               : y * view_on(device, context.loss_scale, {1}, at::kDouble);
  };
  // -q is computed in float64 and rounded by every write.
  at::Tensor minus_q = matrix(context.work, 0, device);
  if (spec_.smoothing > 0)
    at::mul_out(minus_q, scaled(spread(columns), -hard).unsqueeze(1), weights_.on(device));
  else
    minus_q.zero_();
  for (const Part& part : columns) {
    // A comparison with all classes instead of a scatter, which would add by atomics.
    const at::Tensor hit = at::eq(columns_.on(device), part.targets.unsqueeze(1));
    const at::Tensor value = scaled(part.share * part.weight, -hard * (1 - spec_.smoothing));
    minus_q.addcmul_(hit, value.unsqueeze(1));
  }

  // ATen turns -q into the gradient, as on the CPU.
  at::Tensor dlogits =
      at::_log_softmax_backward_data(minus_q, matrix(context.saved, 0, device), 1, at::kFloat);
  if (spec_.teacher) {  // d/dx of T^2 KL(t || p_T) is T (p_T - t)
    const at::Tensor student = matrix(context.saved, 1, device).to(at::kDouble);
    const at::Tensor teacher = matrix(context.saved, 2, device).to(at::kDouble);
    const at::Tensor factor =
        scaled(row_weight(columns), spec_.mix * spec_.temperature).unsqueeze(1);
    dlogits = (factor * (student.exp() - teacher.exp()) + dlogits).to(at::kFloat);
  }
  grad.copy_(dlogits.view_as(grad));
}

}  // namespace tutti
