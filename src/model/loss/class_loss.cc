// Cross-entropy with soft targets, by hand. Every row has soft targets q, whose sum is not always
// 1. Its loss is the sum over classes of -q log p, and the gradient of that is sum(q) p - q, which
// is how ATen differentiates a log-softmax.
//   w_y         the weight of class y; s: smoothing; C: classes; m: the row's mix (0 without mixup)
//   q(y)        (1 - s) w_y at y, plus s / C w_c at every class c
//   q           (1 - m) q(targets) + m q(other_targets); an ignored target adds nothing
//   row weight  (1 - m) w_targets + m w_other_targets, whose sum is the count
// With a teacher of weight `mix`, this is (1 - mix) of the loss; the rest is T^2 KL(t || p_T) times
// the row weight, where t and p_T are the teacher's and the model's distributions at temperature T.
#include "model/loss/class_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/portable_math.h"
#include "model/core/wiring.h"
#include "model/loss/class_loss_device.h"
#include "tensor/log_softmax.h"

namespace tutti {

namespace {

// What one row of the logits is compared with.
struct Row {
  int64_t target = kIgnoredTarget, other = kIgnoredTarget;
  double mix = 0;     // share of `other`
  double weight = 0;  // what it adds to the count
};

class ClassLoss final : public Segment {
 public:
  explicit ClassLoss(ClassLossSpec spec) : spec_(std::move(spec)) {
    classes_ = spec_.logits.dims.back();
    rows_ = 1;
    for (int64_t d : spec_.targets.dims) rows_ *= d;
    if (spec_.weights.empty()) spec_.weights.assign(static_cast<size_t>(classes_), 1.0);

    // A teacher reads all of the data, of which the targets are a part; otherwise only what is used
    // is an input.
    inputs_ = {spec_.logits};
    if (spec_.teacher) {
      inputs_.insert(inputs_.end(), spec_.data.begin(), spec_.data.end());
    } else {
      inputs_.push_back(spec_.targets);
      if (spec_.mixup) {
        inputs_.push_back({"other_targets", spec_.targets.dims, at::kLong});
        inputs_.push_back({"mix", {spec_.targets.dims[0]}});
      }
    }
    targets_at_ = place_of(spec_.targets.name);
    if (spec_.mixup) other_at_ = place_of("other_targets"), mix_at_ = place_of("mix");
    on_device_ = std::make_unique<DeviceClassLoss>(spec_, rows_, classes_);
  }

  std::string name() const override { return spec_.teacher ? "distill" : "cross_entropy"; }
  std::vector<Border> inputs() const override { return inputs_; }
  std::vector<Border> outputs() const override { return {{"loss", {2}, at::kDouble}}; }
  bool captures() const override { return !spec_.teacher; }
  // log p, and with a teacher also log p_T and log t.
  int64_t saved_bytes() const override { return matrices() * matrix_bytes(); }
  // Holds -q in backward.
  int64_t work_bytes() const override { return matrix_bytes(); }
  bool splits() const override { return true; }

  void forward(Context& context, Tensors in, Tensors out) const override {
    if (!in[0].is_cpu()) return on_device_->forward(context, device_rows(in), taught(in), out[0]);

    // The logarithms of probabilities are kept for backward.
    const at::Tensor log_p = matrix(context.saved, 0);
    keep_log_p(in[0], 1, context.saved, 0);
    if (spec_.teacher) {
      keep_log_p(in[0], spec_.temperature, context.saved, 1);
      keep_log_p(taught(in), spec_.temperature, context.saved, 2);
    }

    // Rows are added in order in float64. A row of padding counts nothing and is skipped, since its
    // logits may be anything.
    double sum = 0, count = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      const Row row = row_at(in, r);
      count += row.weight;
      if (row.target == kIgnoredTarget && row.other == kIgnoredTarget) continue;
      sum += (1 - teacher_share()) * hard_loss(row, log_p.const_data_ptr<float>() + r * classes_);
      if (spec_.teacher) sum += teacher_share() * row.weight * soft_loss(context.saved, r);
    }
    double* loss = out[0].mutable_data_ptr<double>();
    loss[0] = sum;
    loss[1] = count;
  }

  void backward(Context& context, Tensors in, Tensors, Tensors, Tensors grad_in) const override {
    if (!grad_in[0].defined()) return;
    if (!in[0].is_cpu()) return on_device_->backward(context, device_rows(in), grad_in[0]);

    // Makes -q row by row, which is the gradient of log p.
    at::Tensor to = grad_in[0].view({rows_, classes_});
    at::Tensor minus_q = matrix(context.work, 0);
    std::memset(minus_q.data_ptr(), 0, static_cast<size_t>(rows_ * classes_) * sizeof(float));
    for (int64_t r = 0; r < rows_; ++r)
      add_soft_targets(row_at(in, r), -(1 - teacher_share()),
                       minus_q.mutable_data_ptr<float>() + r * classes_);
    log_softmax_backward(minus_q.const_data_ptr<float>(),
                         matrix(context.saved, 0).const_data_ptr<float>(),
                         to.mutable_data_ptr<float>(), rows_, classes_);
    if (spec_.teacher) add_teacher(context, in, to);
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    backward(context, in, out, grad_out, grad_in);
  }
  void backward_weight(Context&, Tensors, Tensors) const override {}

 private:
  int64_t matrices() const { return spec_.teacher ? 3 : 1; }
  int64_t matrix_bytes() const {
    return align_up(rows_ * classes_ * static_cast<int64_t>(sizeof(float)), 64);
  }
  double teacher_share() const { return spec_.teacher ? spec_.mix : 0; }

  // The teacher's logits; undefined if there is no teacher.
  at::Tensor taught(Tensors in) const {
    if (!spec_.teacher) return {};
    const at::Tensor answer = spec_.teacher(in.subspan(1));
    if (answer.sizes() != in[0].sizes())
      throw Error(fmt::format("the teacher's output is [{}], the model's [{}]",
                              fmt::join(answer.sizes(), ", "), fmt::join(in[0].sizes(), ", ")));
    return answer;
  }

  ClassRows device_rows(Tensors in) const {
    ClassRows rows{in[0], in[targets_at_], {}, {}};
    if (spec_.mixup) rows.others = in[other_at_], rows.mix = in[mix_at_];
    return rows;
  }

  size_t place_of(const std::string& name) const {
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (inputs_[i].name == name) return i;
    throw Error(fmt::format("the loss of {} wants {}, which the data does not have",
                            spec_.logits.name, name));
  }

  // Matrix `index` [rows, classes] in a segment's memory.
  at::Tensor matrix(std::span<std::byte> memory, int64_t index) const {
    TUTTI_CHECK(static_cast<int64_t>(memory.size()) >= (index + 1) * matrix_bytes(),
                "too little memory for the loss");
    return at::from_blob(memory.data() + index * matrix_bytes(), {rows_, classes_}, at::kFloat);
  }

  void keep_log_p(const at::Tensor& logits, double temperature, std::span<std::byte> saved,
                  int64_t index) const {
    log_softmax(logits.contiguous().const_data_ptr<float>(), static_cast<float>(temperature),
                matrix(saved, index).mutable_data_ptr<float>(), rows_, classes_);
  }

  int64_t checked(int64_t target) const {
    if (target < kIgnoredTarget || target >= classes_)
      throw Error(fmt::format("target {} is not one of the {} classes", target, classes_));
    return target;
  }

  double weight_of(int64_t target) const {
    return target == kIgnoredTarget ? 0 : spec_.weights[static_cast<size_t>(target)];
  }

  // Reads one row's targets and mix. A sample's rows (a gpt's tokens) share its mix.
  Row row_at(Tensors in, int64_t r) const {
    Row row;
    row.target = checked(in[targets_at_].const_data_ptr<int64_t>()[r]);
    if (!spec_.mixup) {
      row.weight = weight_of(row.target);
      return row;
    }
    row.other = checked(in[other_at_].const_data_ptr<int64_t>()[r]);
    row.mix = in[mix_at_].const_data_ptr<float>()[r / (rows_ / spec_.targets.dims[0])];
    row.weight = (1 - row.mix) * weight_of(row.target) + row.mix * weight_of(row.other);
    return row;
  }

  double spread(const Row& row) const {  // what the smoothing gives to each class
    const double shares = (row.target == kIgnoredTarget ? 0 : 1 - row.mix) +
                          (row.other == kIgnoredTarget ? 0 : row.mix);
    return shares * spec_.smoothing / static_cast<double>(classes_);
  }

  // The sum over classes of -q log p.
  double hard_loss(const Row& row, const float* log_p) const {
    const double kept = 1 - spec_.smoothing;
    double loss = 0;
    if (row.target != kIgnoredTarget)
      loss -= (1 - row.mix) * kept * weight_of(row.target) * log_p[row.target];
    if (row.other != kIgnoredTarget)
      loss -= row.mix * kept * weight_of(row.other) * log_p[row.other];
    if (spec_.smoothing > 0) {
      double all = 0;
      for (int64_t c = 0; c < classes_; ++c)
        all += spec_.weights[static_cast<size_t>(c)] * log_p[c];
      loss -= spread(row) * all;
    }
    return loss;
  }

  // Adds factor * q to a row that is zero.
  void add_soft_targets(const Row& row, double factor, float* q) const {
    const double kept = factor * (1 - spec_.smoothing);
    if (const double s = factor * spread(row); s != 0)
      for (int64_t c = 0; c < classes_; ++c)
        q[c] = static_cast<float>(s * spec_.weights[static_cast<size_t>(c)]);
    if (row.target != kIgnoredTarget)
      q[row.target] =
          static_cast<float>(q[row.target] + kept * (1 - row.mix) * weight_of(row.target));
    if (row.other != kIgnoredTarget)
      q[row.other] = static_cast<float>(q[row.other] + kept * row.mix * weight_of(row.other));
  }

  // T^2 KL(t || p_T)
  double soft_loss(std::span<std::byte> saved, int64_t r) const {
    const at::Tensor student = matrix(saved, 1), teacher = matrix(saved, 2);
    const float* s = student.const_data_ptr<float>() + r * classes_;
    const float* t = teacher.const_data_ptr<float>() + r * classes_;
    double divergence = 0;
    for (int64_t c = 0; c < classes_; ++c)
      if (const double p = portable::exp(double{t[c]}); p > 0)
        divergence += p * (double{t[c]} - double{s[c]});
    return spec_.temperature * spec_.temperature * divergence;
  }

  // d/dx of T^2 KL(t || p_T) is T (p_T - t).
  void add_teacher(const Context& context, Tensors in, at::Tensor& to) const {
    const at::Tensor student = matrix(context.saved, 1), teacher = matrix(context.saved, 2);
    const float *s = student.const_data_ptr<float>(), *t = teacher.const_data_ptr<float>();
    float* grad = to.mutable_data_ptr<float>();
    for (int64_t r = 0; r < rows_; ++r) {
      const double factor = spec_.mix * spec_.temperature * row_at(in, r).weight;
      if (factor == 0) continue;
      for (int64_t i = r * classes_; i < (r + 1) * classes_; ++i)
        grad[i] = static_cast<float>(
            grad[i] + factor * (portable::exp(double{s[i]}) - portable::exp(double{t[i]})));
    }
  }

  ClassLossSpec spec_;
  std::vector<Border> inputs_;
  size_t targets_at_ = 0, other_at_ = 0, mix_at_ = 0;
  int64_t rows_ = 0, classes_ = 0;
  std::unique_ptr<DeviceClassLoss> on_device_;
};

}  // namespace

std::unique_ptr<Segment> class_loss(ClassLossSpec spec) {
  const Border &logits = spec.logits, &targets = spec.targets;
  if (logits.dims.size() < 2 || targets.type != at::kLong || !floating(logits) ||
      targets.dims != std::vector<int64_t>(logits.dims.begin(), logits.dims.end() - 1))
    throw Error(fmt::format("cross-entropy of {} needs int64 targets of its leading dims, not {}",
                            to_string(logits), to_string(targets)));
  if (!spec.weights.empty() && static_cast<int64_t>(spec.weights.size()) != logits.dims.back())
    throw Error(fmt::format("loss.class_weights are {} but there are {} classes",
                            spec.weights.size(), logits.dims.back()));
  return std::make_unique<ClassLoss>(std::move(spec));
}

}  // namespace tutti
