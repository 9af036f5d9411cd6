// Makes the report of what was added up. Every number is rounded once, here.
#include <fmt/format.h>

#include <cmath>

#include "eval/auc.h"
#include "eval/metrics.h"

namespace tutti {

namespace {

using nlohmann::json;

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// What is said of one class.
struct Rates {
  double precision, recall, f1;
};

/// From `hits`, the number that was taken for the class and the number that is of the class.
Rates rates(int64_t hits, int64_t taken, int64_t occurring) {
  return {ratio(hits, taken), ratio(hits, occurring), ratio(2 * hits, taken + occurring)};
}

/// Adds a * b without rounding: the product, and what its rounding left out.
void add_product(ExactSum& sum, double a, double b) {
  const double product = a * b;
  sum.add(product);
  sum.add(std::fma(a, b, -product));
}

}  // namespace

double Metrics::loss() const {
  const double count = loss_count_.value();
  return count == 0 ? 0 : loss_.value() / count;
}

json Metrics::report() const {
  json report{{"loss", loss()}};
  if (count_ == 0) return report;
  if (task_ == Task::kTokens) {
    report["perplexity"] = std::exp(loss());
    report["accuracy"] = ratio(correct_, count_);
  }
  if (task_ == Task::kClasses) report_classes(report);
  if (task_ == Task::kBinary) report_binary(report);
  if (task_ == Task::kValues || task_ == Task::kReconstruct) report_values(report);
  return report;
}

void Metrics::report_classes(json& report) const {
  // Means over classes: each rate over the classes that occur, auc over those that have one.
  const bool scored = static_cast<int64_t>(labels_.size()) == count_;
  json list = json::array(), confusion = json::array();
  double precision = 0, recall = 0, f1 = 0, auc = 0;
  int64_t correct = 0, occur = 0, with_auc = 0;
  for (int64_t c = 0; c < classes_; ++c) {
    const int64_t hits = hits_[c], occurring = occurring_[c];
    const Rates of = rates(hits, taken_[c], occurring);
    const auto own_auc =
        scored ? auc_of(scores_, labels_, c, classes_, static_cast<int32_t>(c)) : std::nullopt;
    correct += hits;
    if (occurring > 0) {
      ++occur;
      precision += of.precision, recall += of.recall, f1 += of.f1;
    }
    if (own_auc) ++with_auc, auc += *own_auc;

    // Tables per class are only given for few classes, as the confusion is.
    if (confusion_.empty()) continue;
    const auto row = confusion_.begin() + c * classes_;
    list.push_back({{"precision", of.precision},
                    {"recall", of.recall},
                    {"f1", of.f1},
                    {"auc", own_auc ? json(*own_auc) : json()},
                    {"count", occurring}});
    confusion.push_back(std::vector<int64_t>(row, row + classes_));
  }
  const auto classes = static_cast<double>(occur);
  report["accuracy"] = ratio(correct, count_);
  report["precision"] = precision / classes;
  report["recall"] = recall / classes;
  report["f1"] = f1 / classes;
  if (with_auc > 0) report["auc"] = auc / static_cast<double>(with_auc);
  if (confusion_.empty()) return;
  report["per_class"] = std::move(list);
  report["confusion"] = std::move(confusion);
}

void Metrics::report_binary(json& report) const {
  const Rates of = rates(hits_[1], taken_[1], occurring_[1]);
  report["accuracy"] = ratio(hits_[0] + hits_[1], count_);
  report["precision"] = of.precision;
  report["recall"] = of.recall;
  report["f1"] = of.f1;
  if (static_cast<int64_t>(labels_.size()) != count_) return;
  if (const auto auc = auc_of(scores_, labels_, 0, 1, 1)) report["auc"] = *auc;
}

void Metrics::report_values(json& report) const {
  const auto n = static_cast<double>(count_);
  const double squares = squares_.value();
  report["mse"] = squares / n;
  report["mae"] = absolutes_.value() / n;
  // r2 compares the squared error with the targets' variation, the sum of (t - m)^2:
  //   sum of t^2  -  2 m * sum of t  +  n * m^2
  // It is added up without rounding before the end, so that the large terms cancel exactly. `rest`
  // is what rounding left out of `sum`.
  const double sum = targets_.value(), mean = sum / n;
  ExactSum rest = targets_, spread = target_squares_;
  rest.add(-sum);
  add_product(spread, -2 * mean, sum);
  add_product(spread, -2 * mean, rest.value());
  const double product = mean * n;
  add_product(spread, product, mean);
  add_product(spread, std::fma(mean, n, -product), mean);
  const double variation = spread.value();
  if (variation > 0)
    report["r2"] = 1 - squares / variation;
  else
    report["r2"] = squares == 0 ? 1.0 : 0.0;  // all targets are the same
}

std::vector<std::string> metric_names(Task task) {
  switch (task) {
    case Task::kLoss:
      return {"loss"};
    case Task::kTokens:
      return {"loss", "perplexity", "accuracy"};
    case Task::kClasses:
    case Task::kBinary:
      return {"loss", "accuracy", "precision", "recall", "f1", "auc"};
    case Task::kValues:
    case Task::kReconstruct:
      return {"loss", "mse", "mae", "r2"};
  }
  return {};
}

}  // namespace tutti
