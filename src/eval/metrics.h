// Metrics of an evaluation. They are made of counts and exact sums, so they do not depend on who
// evaluated what.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/exact_sum.h"
#include "model/core/segment.h"

namespace tutti {

/// A value that is summed exactly over all predicted values: "the squared error".
using ValueTerm = double (*)(double output, double target);
/// How many targets of a class were hit, how many were taken for it, and how many there are; and
/// the area under its ROC curve, if it has one.
struct ClassCounts {
  int64_t hits = 0, taken = 0, occurring = 0;
  std::optional<double> auc{};
};
struct MetricRow;

/// What one rank's micro-batches add up to. Ranks exchange bytes() and merge them. However the
/// micro-batches were dealt out and merged, the report is the same to the last bit.
class Metrics {
 public:
  /// `classes` is the number of columns of the output if the task is kClasses.
  Metrics(Task task, int64_t classes);
  /// Adds one micro-batch: the loss's sum and count, the model's output and its data tensors
  /// (targets by name). A target of -1, or NaN where targets are floats, is padding and left out.
  /// Tensors may be on a device, which this then waits for, and of any floating type: the numbers
  /// are those of the same output on the host.
  void add(double loss_sum, double loss_count, const at::Tensor& output, Tensors data,
           const std::vector<Border>& borders);
  /// Everything that was added, for merge() of another rank.
  std::string bytes() const;
  /// Adds what bytes() of another rank holds. Throws Error if it is not of the same task
  /// and classes.
  void merge(const std::string& bytes);

  double loss() const;  ///< the mean; 0 without targets
  double accuracy() const;
  /// {"loss": ...}, and nothing else if there were no targets; otherwise, by task, also
  ///   kTokens                perplexity, accuracy
  ///   kClasses               accuracy, precision, recall, f1 (means over the classes that occur),
  ///                          auc (one against the rest, mean; exact, ties count half; of up to
  ///                          2^22 targets); of up to 1024 classes also per_class: [{precision,
  ///                          recall, f1, auc, count}] and confusion: [[count of class i taken for
  ///                          j]]
  ///   kBinary                accuracy, precision, recall, f1, auc (of all columns together)
  ///   kValues, kReconstruct  mse, mae, r2 (of all columns together)
  /// The rows in metrics_report.cc say which metrics there are and what each is made of.
  /// A ratio of nothing (the precision of a class that was never predicted) is 0. An auc without
  /// both kinds of targets is left out; in per_class it is null.
  nlohmann::json report() const;

 private:
  void add_tokens(const float* output, const at::Tensor& targets);
  void add_predictions(const at::Tensor& predictions, const at::Tensor& targets);
  void add_classes(const float* output, const at::Tensor& targets);
  void add_binary(const float* output, const at::Tensor& targets);
  void add_reconstruction(const at::Tensor& output, Tensors data,
                          const std::vector<Border>& borders);
  void add_values(const float* output, const float* targets, int64_t n);
  void count(int64_t target, int64_t taken_for);
  void keep_scores_in_bounds();
  std::vector<ClassCounts> class_counts() const;
  std::optional<double> figure(const MetricRow& row, const std::vector<ClassCounts>& counts) const;
  void add_tables(nlohmann::json& report, const std::vector<ClassCounts>& counts) const;

  Task task_;
  int64_t classes_;
  ExactSum loss_, loss_count_;
  std::vector<ExactSum> value_sums_;  // by value_terms()
  int64_t count_ = 0, correct_ = 0;
  std::vector<int64_t> hits_, taken_, occurring_;  // by class
  // row-major, true class by taken class; empty if there are too many classes
  std::vector<int64_t> confusion_;
  // for each target classes_ scores (kClasses) or one (kBinary)
  std::vector<float> scores_;
  std::vector<int32_t> labels_;  // one per target with scores
};

/// For each row of output [.., classes] the first place of its largest value, on the output's
/// device; -1 if a value is NaN.
at::Tensor largest_places(const at::Tensor& output);

/// The terms of all metrics of values, row by row.
const std::vector<ValueTerm>& value_terms();

/// The metrics of a task that train.watch may name.
std::vector<std::string> metric_names(Task task);

/// Lines for people: the averages, then what is known of every class (up to 100), then the
/// confusion matrix (of up to 20 classes). Metrics come in the order of config/job_parts.cc.
/// `names` are the classes', or empty. The text ends with a line end, unless it is empty.
std::string metrics_table(const nlohmann::json& report, const std::vector<std::string>& names);

}  // namespace tutti
