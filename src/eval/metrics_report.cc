// The metrics, and the report of what was added up. Every number is rounded once, here.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "base/portable_math.h"
#include "eval/auc.h"
#include "eval/metrics.h"

namespace tutti {

namespace {

using nlohmann::json;

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// Adds a * b without rounding: the product, and what its rounding left out.
void add_product(ExactSum& sum, double a, double b) {
  const double product = a * b;
  sum.add(product);
  sum.add(std::fma(a, b, -product));
}

double squared_error(double output, double target) { return (output - target) * (output - target); }

/// 1 - squares / variation. r2 compares the squared error with the targets' variation, the sum of
/// (t - m)^2:
///   sum of t^2  -  2 m * sum of t  +  n * m^2
/// It is added up without rounding before the end, so that the large terms cancel exactly. `rest`
/// is what rounding left out of `sum`.
double explained(double squares, const ExactSum& targets, ExactSum spread, double n) {
  const double sum = targets.value(), mean = sum / n;
  ExactSum rest = targets;
  rest.add(-sum);
  add_product(spread, -2 * mean, sum);
  add_product(spread, -2 * mean, rest.value());
  const double product = mean * n;
  add_product(spread, product, mean);
  add_product(spread, std::fma(mean, n, -product), mean);
  const double variation = spread.value();
  if (variation > 0) return 1 - squares / variation;
  return squares == 0 ? 1.0 : 0.0;  // all targets are the same
}

}  // namespace

/// A metric of the table in config/job_parts.cc: the tasks that have it, and one way to work it
/// out.
struct MetricRow {
  std::string_view name;
  std::vector<Task> tasks;
  /// For classes, the metric is the mean over those that occur and have a value; for binary
  /// targets, that of the ones.
  std::optional<double> (*of_class)(const ClassCounts& counts) = nullptr;
  /// For values, it follows from the sums of these terms over n values.
  std::vector<ValueTerm> terms{};
  double (*of_sums)(std::span<const ExactSum> sums, double n) = nullptr;
  /// Otherwise it follows from whatever else the metrics know.
  double (*of_all)(const Metrics& metrics) = nullptr;
};

namespace {

const std::vector<MetricRow>& metric_rows() {
  using enum Task;
  static const std::vector<Task> all = {kLoss, kTokens, kClasses, kBinary, kValues, kReconstruct},
                                 classes = {kClasses, kBinary}, values = {kValues, kReconstruct};
  static const std::vector<MetricRow> rows = {
      {.name = "loss",
       .tasks = all,
       .of_all = [](const Metrics& metrics) { return metrics.loss(); }},
      {.name = "perplexity",
       .tasks = {kTokens},
       .of_all = [](const Metrics& metrics) { return portable::exp(metrics.loss()); }},
      {.name = "accuracy",
       .tasks = {kTokens, kClasses, kBinary},
       .of_all = [](const Metrics& metrics) { return metrics.accuracy(); }},
      {.name = "precision",
       .tasks = classes,
       .of_class = [](const ClassCounts& c) { return std::optional(ratio(c.hits, c.taken)); }},
      {.name = "recall",
       .tasks = classes,
       .of_class = [](const ClassCounts& c) { return std::optional(ratio(c.hits, c.occurring)); }},
      {.name = "f1",
       .tasks = classes,
       .of_class =
           [](const ClassCounts& c) {
             return std::optional(ratio(2 * c.hits, c.taken + c.occurring));
           }},
      {.name = "auc", .tasks = classes, .of_class = [](const ClassCounts& c) { return c.auc; }},
      {.name = "mse",
       .tasks = values,
       .terms = {squared_error},
       .of_sums = [](std::span<const ExactSum> sums, double n) { return sums[0].value() / n; }},
      {.name = "mae",
       .tasks = values,
       .terms = {[](double output, double target) { return std::abs(output - target); }},
       .of_sums = [](std::span<const ExactSum> sums, double n) { return sums[0].value() / n; }},
      {.name = "r2",
       .tasks = values,
       .terms = {squared_error, [](double, double target) { return target; },
                 [](double, double target) { return target * target; }},  // exact: it fits
       .of_sums = [](std::span<const ExactSum> sums,
                     double n) { return explained(sums[0].value(), sums[1], sums[2], n); }},
  };
  return rows;
}

bool has(const MetricRow& row, Task task) {
  return std::find(row.tasks.begin(), row.tasks.end(), task) != row.tasks.end();
}

}  // namespace

const std::vector<ValueTerm>& value_terms() {
  static const std::vector<ValueTerm> terms = [] {
    std::vector<ValueTerm> all;
    for (const MetricRow& row : metric_rows())
      all.insert(all.end(), row.terms.begin(), row.terms.end());
    return all;
  }();
  return terms;
}

std::vector<std::string> metric_names(Task task) {
  std::vector<std::string> names;
  for (const MetricRow& row : metric_rows())
    if (has(row, task)) names.emplace_back(row.name);
  return names;
}

double Metrics::loss() const {
  const double count = loss_count_.value();
  return count == 0 ? 0 : loss_.value() / count;
}

double Metrics::accuracy() const {
  int64_t correct = correct_;
  for (int64_t hits : hits_) correct += hits;
  return ratio(correct, count_);
}

/// The counts of each class. A class has no auc if scores were dropped or if it lacks one kind of
/// targets; of binary targets only the ones have an auc.
std::vector<ClassCounts> Metrics::class_counts() const {
  const bool scored = static_cast<int64_t>(labels_.size()) == count_;
  std::vector<ClassCounts> all;
  for (size_t c = 0; c < hits_.size(); ++c) {
    const auto label = static_cast<int32_t>(c);
    all.push_back({hits_[c], taken_[c], occurring_[c]});
    if (scored && task_ == Task::kClasses)
      all.back().auc = auc_of(scores_, labels_, label, classes_, label);
    if (scored && task_ == Task::kBinary && label == 1)
      all.back().auc = auc_of(scores_, labels_, 0, 1, label);
  }
  return all;
}

std::optional<double> Metrics::figure(const MetricRow& row,
                                      const std::vector<ClassCounts>& counts) const {
  if (row.of_all != nullptr) return row.of_all(*this);
  if (row.of_sums != nullptr) {
    size_t first = 0;
    for (const MetricRow* before = metric_rows().data(); before != &row; ++before)
      first += before->terms.size();
    return row.of_sums(std::span(value_sums_).subspan(first, row.terms.size()),
                       static_cast<double>(count_));
  }
  if (task_ == Task::kBinary) return row.of_class(counts[1]);
  double sum = 0;
  int64_t many = 0;
  for (const ClassCounts& of : counts) {
    if (of.occurring == 0) continue;
    if (const auto value = row.of_class(of)) sum += *value, ++many;
  }
  if (many == 0) return std::nullopt;
  return sum / static_cast<double>(many);
}

json Metrics::report() const {
  json report{{"loss", loss()}};
  if (count_ == 0) return report;
  const std::vector<ClassCounts> counts = class_counts();
  for (const MetricRow& row : metric_rows())
    if (has(row, task_))
      if (const auto value = figure(row, counts)) report[std::string(row.name)] = *value;

  // Tables per class are only given for few classes, as the confusion is.
  if (task_ == Task::kClasses && !confusion_.empty()) add_tables(report, counts);
  return report;
}

void Metrics::add_tables(json& report, const std::vector<ClassCounts>& counts) const {
  json list = json::array(), confusion = json::array();
  for (size_t c = 0; c < counts.size(); ++c) {
    json of;
    for (const MetricRow& row : metric_rows()) {
      if (row.of_class == nullptr) continue;
      const auto value = row.of_class(counts[c]);
      of[std::string(row.name)] = value ? json(*value) : json();
    }
    of["count"] = counts[c].occurring;
    list.push_back(std::move(of));
    const auto row = confusion_.begin() + static_cast<int64_t>(c) * classes_;
    confusion.push_back(std::vector<int64_t>(row, row + classes_));
  }
  report["per_class"] = std::move(list);
  report["confusion"] = std::move(confusion);
}

}  // namespace tutti
