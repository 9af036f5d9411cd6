// How the numbers come to be the same for every split of the micro-batches:
//   counts    are integers
//   sums      are ExactSum: they have no order, and are rounded once in the report
//   auc       is a function of the multiset of (score, label): eval/auc.h
//   averages  over classes are taken in class order, in the report (metrics_report.cc)
#include "eval/metrics.h"

#include <ATen/ops/isnan.h>
#include <ATen/ops/max.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "eval/auc.h"

namespace tutti {

namespace {

/// With more targets or scores than these there is no auc, since its scores have to be kept.
constexpr int64_t kMostTargets = int64_t{1} << 22, kMostScores = int64_t{1} << 27;
/// With more classes than these there is no confusion matrix: its size is their square, and nobody
/// would read it.
constexpr int64_t kMostConfused = 1024;

const at::Tensor& named(const std::string& name, Tensors data, const std::vector<Border>& borders) {
  for (size_t i = 0; i < borders.size() && i < data.size(); ++i)
    if (borders[i].name == name) return data[i];
  throw Error(fmt::format("the data has no \"{}\" to evaluate by", name));
}

// Metrics travel between ranks as plain bytes; all ranks run the same program.
template <typename T>
void put(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
void put(std::string& to, const std::vector<T>& values) {
  put(to, static_cast<int64_t>(values.size()));
  to.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

/// Reads what put() wrote, and never past the end of the bytes.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <typename T>
  T one() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> many() {
    const auto n = one<int64_t>();
    if (n < 0 || static_cast<uint64_t>(n) > bytes_.size() / sizeof(T)) fail();
    std::vector<T> values(n);
    if (n > 0) std::memcpy(values.data(), take(n * sizeof(T)), n * sizeof(T));
    return values;
  }
  void end() const {
    if (at_ != bytes_.size()) fail();
  }

 private:
  [[noreturn]] static void fail() {
    throw Error("metrics of another rank: not the bytes of this task's metrics");
  }
  const char* take(size_t n) {
    if (bytes_.size() - at_ < n) fail();
    at_ += n;
    return bytes_.data() + at_ - n;
  }
  const std::string& bytes_;
  size_t at_ = 0;
};

/// Calls visit(row of the output, target) for every target that is not padding.
template <typename Visit>
void for_each_target(const float* output, const at::Tensor& targets, int64_t classes, Visit visit) {
  const auto* wanted = targets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (wanted[i] < 0) continue;
    TUTTI_CHECK(wanted[i] < classes, "target {} of {} classes", wanted[i], classes);
    visit(output + i * classes, wanted[i]);
  }
}

}  // namespace

Metrics::Metrics(Task task, int64_t classes) : task_(task), classes_(classes) {
  if (task == Task::kValues || task == Task::kReconstruct) value_sums_.resize(value_terms().size());

  // Binary targets of all columns are counted together, as two classes.
  if (task == Task::kBinary) classes_ = 2;
  if (task != Task::kClasses && task != Task::kBinary) return;
  for (auto* counts : {&hits_, &taken_, &occurring_})
    counts->assign(static_cast<size_t>(classes_), 0);
  if (classes_ <= kMostConfused) confusion_.assign(static_cast<size_t>(classes_ * classes_), 0);
}

// One target of class `target` for which class `taken_for` was predicted.
void Metrics::count(int64_t target, int64_t taken_for) {
  ++count_;
  hits_[target] += target == taken_for ? 1 : 0;
  ++taken_[taken_for];
  ++occurring_[target];
  if (!confusion_.empty()) ++confusion_[target * classes_ + taken_for];
  keep_scores_in_bounds();
}

void Metrics::add(double loss_sum, double loss_count, const at::Tensor& output, Tensors data,
                  const std::vector<Border>& borders) {
  loss_.add(loss_sum);
  loss_count_.add(loss_count);
  if (task_ == Task::kLoss) return;

  // Logits of tokens are large, so only the predictions leave the device.
  if (task_ == Task::kTokens && !output.is_cpu()) {
    classes_ = output.size(-1);
    return add_predictions(largest_places(output).to(at::kCPU),
                           named("targets", data, borders).to(at::kCPU));
  }
  const at::Tensor out = output.to(at::kCPU).to(at::kFloat).contiguous();
  const auto* values = out.const_data_ptr<float>();
  if (task_ == Task::kReconstruct) return add_reconstruction(out, data, borders);
  const at::Tensor targets = named("targets", data, borders).to(at::kCPU).contiguous();
  if (task_ == Task::kTokens) classes_ = out.size(-1);

  // Outputs and targets must have matching sizes; classes have a column each.
  const int64_t columns = task_ == Task::kTokens || task_ == Task::kClasses ? classes_ : 1;
  TUTTI_CHECK(out.numel() == targets.numel() * columns, "an output of {} for {} targets of {}",
              out.numel(), targets.numel(), columns);
  if (task_ == Task::kTokens) add_tokens(values, targets);
  if (task_ == Task::kClasses) add_classes(values, targets);
  if (task_ == Task::kBinary) add_binary(values, targets.to(at::kFloat));
  if (task_ == Task::kValues) {
    const at::Tensor wanted = targets.to(at::kFloat);
    add_values(values, wanted.const_data_ptr<float>(), wanted.numel());
  }
}

void Metrics::add_reconstruction(const at::Tensor& out, Tensors data,
                                 const std::vector<Border>& borders) {
  const at::Tensor original = data[0].to(at::kCPU).to(at::kFloat).contiguous();
  const int64_t rows = out.size(0), row = rows == 0 ? 0 : out.numel() / rows;
  TUTTI_CHECK(original.numel() == out.numel(), "a reconstruction has its original's size");

  // Rows of padding are marked by targets, if the data has any.
  const bool marked = std::any_of(borders.begin(), borders.end(),
                                  [](const Border& b) { return b.name == "targets"; });
  const at::Tensor marks =
      marked ? named("targets", data, borders).to(at::kCPU).to(at::kDouble).contiguous()
             : at::Tensor();
  for (int64_t r = 0; r < rows; ++r) {
    if (marked) {
      const double mark = marks.const_data_ptr<double>()[r * (marks.numel() / rows)];
      if (mark == -1 || std::isnan(mark)) continue;
    }
    add_values(out.const_data_ptr<float>() + r * row, original.const_data_ptr<float>() + r * row,
               row);
  }
}

at::Tensor largest_places(const at::Tensor& output) {
  const auto [values, places] = at::max(output, -1);  // the first of equals; a NaN is the largest
  return places.masked_fill(at::isnan(values), -1);
}

void Metrics::add_predictions(const at::Tensor& predictions, const at::Tensor& targets) {
  const at::Tensor taken = predictions.contiguous(), all = targets.contiguous();
  TUTTI_CHECK(taken.numel() == all.numel(), "{} predictions for {} targets", taken.numel(),
              all.numel());
  const auto* wanted = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < all.numel(); ++i) {
    if (wanted[i] < 0) continue;
    TUTTI_CHECK(wanted[i] < classes_, "target {} of {} classes", wanted[i], classes_);
    ++count_;
    correct_ += taken.const_data_ptr<int64_t>()[i] == wanted[i] ? 1 : 0;
  }
}

void Metrics::add_tokens(const float* output, const at::Tensor& targets) {
  for_each_target(output, targets, classes_, [&](const float* x, int64_t target) {
    // What is taken is the first of the largest values. So the target is right if all values before
    // it are smaller and none after it is larger. Unlike an argmax, these loops are vectorised; a
    // NaN fails both comparisons.
    const float own = x[target];
    int beaten = 0;
    for (int64_t j = 0; j < target; ++j) beaten |= static_cast<int>(!(x[j] < own));
    for (int64_t j = target; j < classes_; ++j) beaten |= static_cast<int>(!(x[j] <= own));
    ++count_;
    correct_ += beaten == 0 ? 1 : 0;
  });
}

void Metrics::add_classes(const float* output, const at::Tensor& targets) {
  for_each_target(output, targets, classes_, [&](const float* x, int64_t target) {
    count(target, std::max_element(x, x + classes_) - x);

    // Scores are kept only as long as there is one for every target so far.
    if (count_ != static_cast<int64_t>(labels_.size()) + 1) return;
    labels_.push_back(static_cast<int32_t>(target));
    scores_.resize(scores_.size() + classes_);
    log_odds(x, classes_, scores_.data() + scores_.size() - classes_);
  });
}

void Metrics::add_binary(const float* output, const at::Tensor& targets) {
  const auto* wanted = targets.const_data_ptr<float>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (std::isnan(wanted[i]) || wanted[i] == -1) continue;

    // A logit above 0 is a probability above one half.
    const int target = wanted[i] > 0.5F ? 1 : 0;
    count(target, output[i] > 0 ? 1 : 0);
    if (count_ != static_cast<int64_t>(labels_.size()) + 1) continue;
    labels_.push_back(target);
    scores_.push_back(std::isnan(output[i]) ? -std::numeric_limits<float>::infinity() : output[i]);
  }
}

void Metrics::add_values(const float* output, const float* targets, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double target = targets[i];
    if (std::isnan(target)) continue;
    ++count_;
    for (size_t term = 0; term < value_sums_.size(); ++term)
      value_sums_[term].add(value_terms()[term](output[i], target));
  }
}

/// Drops the scores for good if there are more targets than auc is computed for. Whether that
/// happens depends on the number of all targets alone: a rank with fewer keeps its scores until
/// the merge.
void Metrics::keep_scores_in_bounds() {
  const int64_t each = task_ == Task::kBinary ? 1 : classes_;
  if (count_ <= std::min(kMostTargets, kMostScores / each)) return;
  scores_ = {};
  labels_ = {};
}

std::string Metrics::bytes() const {
  // The order here is the order in merge().
  std::string out;
  put(out, static_cast<int64_t>(task_));
  put(out, classes_);
  put(out, loss_);
  put(out, loss_count_);
  put(out, value_sums_);
  put(out, count_);
  put(out, correct_);
  for (const auto* counts : {&hits_, &taken_, &occurring_, &confusion_}) put(out, *counts);
  put(out, scores_);
  put(out, labels_);
  return out;
}

void Metrics::merge(const std::string& bytes) {
  Reader reader(bytes);
  const auto task = reader.one<int64_t>(), classes = reader.one<int64_t>();
  if (task != static_cast<int64_t>(task_) || (task_ != Task::kTokens && classes != classes_))
    throw Error("metrics of another rank: of another task or number of classes");
  loss_.merge(reader.one<ExactSum>());
  loss_count_.merge(reader.one<ExactSum>());
  const auto sums = reader.many<ExactSum>();
  if (sums.size() != value_sums_.size())
    throw Error("metrics of another rank: another number of sums");
  for (size_t i = 0; i < sums.size(); ++i) value_sums_[i].merge(sums[i]);

  // Scores are complete as long as there is one for every target.
  const auto count = reader.one<int64_t>();
  const bool whole = count_ == static_cast<int64_t>(labels_.size());
  count_ += count;
  correct_ += reader.one<int64_t>();
  for (auto* counts : {&hits_, &taken_, &occurring_, &confusion_}) {
    const auto theirs = reader.many<int64_t>();
    if (theirs.size() != counts->size())
      throw Error("metrics of another rank: counts of another size");
    for (size_t i = 0; i < theirs.size(); ++i) (*counts)[i] += theirs[i];
  }
  const auto scores = reader.many<float>();
  const auto labels = reader.many<int32_t>();
  reader.end();

  // auc needs all scores, so one part without them is enough to have none.
  if (whole && count == static_cast<int64_t>(labels.size())) {
    scores_.insert(scores_.end(), scores.begin(), scores.end());
    labels_.insert(labels_.end(), labels.begin(), labels.end());
  }
  if (!occurring_.empty()) keep_scores_in_bounds();
}

}  // namespace tutti
