// Metrics of an evaluation. Sums are exact or counts, so that they do not depend on who evaluated what.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/exact_sum.h"
#include "model/segment.h"

namespace tutti {

/// What one rank's micro-batches add up to; ranks exchange bytes() and merge them.
class Metrics {
 public:
  /// `classes`: columns of the output where the task is kClasses.
  Metrics(Task task, int64_t classes);
  /// One micro-batch: the loss's sum and count, the model's output and its data tensors (targets by name).
  void add(double loss_sum, double loss_count, const at::Tensor& output, Tensors data,
           const std::vector<Border>& borders);
  std::string bytes() const;
  void merge(const std::string& bytes);

  double loss() const;  ///< the mean; 0 without targets
  /// {"loss": ...} and by task
  ///   kTokens    perplexity, accuracy
  ///   kClasses   accuracy, precision, recall, f1 (means over the classes that occur), auc (one against the rest, mean;
  ///              exact, ties count half; of up to 2^22 targets), per_class: [{precision, recall, f1, auc, count}],
  ///              confusion: [[count of class i taken for j]]
  ///   kBinary    accuracy, precision, recall, f1, auc
  ///   kValues, kReconstruct   mse, mae, r2
  nlohmann::json report() const;

 private:
  Task task_;
  int64_t classes_;
  ExactSum loss_, squares_, absolutes_, targets_, target_squares_;
  double loss_count_ = 0;
  int64_t count_ = 0, correct_ = 0;
  std::vector<int64_t> confusion_;
  std::vector<float> scores_;    // of each target: classes_ (kClasses) or one (kBinary)
  std::vector<int32_t> labels_;  // beside them
};

/// Lines for people: the averages, then precision, recall, f1 and count of every class, then the confusion matrix (up to
/// 20 classes). `names` of the classes, or empty.
std::string metrics_table(const nlohmann::json& report, const std::vector<std::string>& names);

}  // namespace tutti
