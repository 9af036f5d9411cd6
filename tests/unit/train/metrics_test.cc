// Metrics by hand on small cases, and the same to the last bit however the micro-batches are dealt
// out.
#include "eval/metrics.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"

namespace tutti {
namespace {

using nlohmann::json;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<Border> kBorders{{"features", {0}}, {"targets", {0}, at::kLong}};

at::Tensor floats(const std::vector<float>& values, at::IntArrayRef dims) {
  return at::tensor(values).reshape(dims);
}
at::Tensor longs(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

/// One micro-batch: the data's first tensor is of no matter but for reconstruction.
void add(Metrics& metrics, const at::Tensor& output, const at::Tensor& targets, double loss = 0,
         double count = 1) {
  const std::vector<at::Tensor> data{at::zeros({1}), targets};
  metrics.add(loss, count, output, data, kBorders);
}

TEST(Metrics, OfClassesByHand) {
  Metrics metrics(Task::kClasses, 3);
  // Taken: 0 0 1 1 2, and padding. True: 0 1 1 1 0. Class 2 does not occur.
  add(metrics, floats({5, 0, 0, 5, 0, 0, 0, 5, 0, 0, 5, 0, 0, 0, 5, 9, 9, 9}, {6, 3}),
      longs({0, 1, 1, 1, 0, -1}), 10, 5);
  const json report = metrics.report();
  EXPECT_EQ(report.at("loss"), 2.0);
  EXPECT_EQ(report.at("accuracy"), 3.0 / 5);
  EXPECT_EQ(report.at("confusion"), json::parse("[[1, 0, 1], [1, 2, 0], [0, 0, 0]]"));
  const json& of = report.at("per_class");
  EXPECT_EQ(of[0].at("precision"), 1.0 / 2);
  EXPECT_EQ(of[0].at("recall"), 1.0 / 2);
  EXPECT_EQ(of[0].at("f1"), 1.0 / 2);
  EXPECT_EQ(of[0].at("count"), 2);
  EXPECT_EQ(of[1].at("precision"), 1.0);
  EXPECT_EQ(of[1].at("recall"), 2.0 / 3);
  EXPECT_EQ(of[1].at("f1"), 4.0 / 5);
  EXPECT_EQ(of[2].at("precision"), 0.0);
  EXPECT_EQ(of[2].at("recall"), 0.0);
  EXPECT_EQ(of[2].at("count"), 0);
  EXPECT_EQ(of[2].at("auc"), json());
  // The means are over the two classes that occur.
  EXPECT_EQ(report.at("precision"), (1.0 / 2 + 1) / 2);
  EXPECT_EQ(report.at("recall"), (1.0 / 2 + 2.0 / 3) / 2);
  EXPECT_EQ(report.at("f1"), (1.0 / 2 + 4.0 / 5) / 2);
  // Class 0: high against (high, low, low) is 0.5 + 1 + 1, low is 0 + 0.5 + 0.5; of 6 pairs.
  EXPECT_EQ(of[0].at("auc"), 3.5 / 6);
  // Class 1: (low, high, high) against (low, low): 0.5 + 0.5 + 4, of 6.
  EXPECT_EQ(of[1].at("auc"), 5.0 / 6);
  EXPECT_EQ(report.at("auc"), (3.5 / 6 + 5.0 / 6) / 2);
}

TEST(Metrics, OfManyClassesHaveRatesAndNoConfusion) {
  constexpr int64_t kClasses = int64_t{1} << 20;  // its confusion would be 8 TiB
  at::Tensor output = at::zeros({2, kClasses});
  output.mutable_data_ptr<float>()[7] = 1;
  output.mutable_data_ptr<float>()[kClasses + 9] = 1;
  Metrics one(Task::kClasses, kClasses), both(Task::kClasses, kClasses);
  add(one, output, longs({7, 8}));
  both.merge(one.bytes());
  both.merge(one.bytes());
  const json report = both.report();
  EXPECT_EQ(report.at("accuracy"), 0.5);
  EXPECT_EQ(report.at("precision"), 0.5);  // 1 of class 7, 0 of class 8
  EXPECT_FALSE(report.contains("confusion"));
  EXPECT_FALSE(report.contains("per_class"));
}

TEST(Metrics, AucOfClassesIsThatOfProbabilitiesThatWouldRoundToOne) {
  Metrics metrics(Task::kClasses, 2);
  // In float32 all of these have a probability of exactly 0 or 1; their order is perfect but for
  // one.
  add(metrics, floats({0, 100, 0, 120, 0, 110, 100, 0, 130, 0}, {5, 2}), longs({0, 1, 1, 0, 0}));
  EXPECT_EQ(metrics.report().at("auc"), 1.0);
  Metrics other(Task::kClasses, 2);
  add(other, floats({0, 100, 0, 120, 0, 110, 100, 0, 130, 0}, {5, 2}), longs({1, 0, 1, 0, 0}));
  EXPECT_EQ(other.report().at("auc"), 4.0 / 6);
}

TEST(Metrics, OfBinaryByHandWithTiesCountingHalf) {
  Metrics metrics(Task::kBinary, 1);
  add(metrics, floats({2, 1, 1, -1, -1, 3}, {3, 2}), floats({1, 1, 0, 1, 0, kNan}, {3, 2}), 3, 5);
  const json report = metrics.report();
  EXPECT_EQ(report.at("accuracy"), 3.0 / 5);
  EXPECT_EQ(report.at("precision"), 2.0 / 3);
  EXPECT_EQ(report.at("recall"), 2.0 / 3);
  EXPECT_EQ(report.at("f1"), 2.0 / 3);
  // Positives 2, 1, -1 against negatives 1, -1: 2 + 1.5 + 0.5 of 6.
  EXPECT_EQ(report.at("auc"), 4.0 / 6);
  EXPECT_FALSE(report.contains("per_class"));
}

TEST(Metrics, AnAucWithoutBothKindsIsLeftOut) {
  Metrics metrics(Task::kBinary, 1);
  add(metrics, floats({2, 1}, {2, 1}), floats({1, 1}, {2, 1}));
  EXPECT_FALSE(metrics.report().contains("auc"));
  EXPECT_EQ(metrics.report().at("recall"), 1.0);
}

TEST(Metrics, OfTokensByHandTakeTheFirstOfTheLargest) {
  Metrics metrics(Task::kTokens, 0);
  add(metrics, floats({1, 3, 2, 7, 7, 0, 7, 7, 0, 0, 0, 1, 5, 5, 5}, {1, 5, 3}),
      longs({1, 0, 1, 0, -1}).reshape({1, 5}), 4 * std::log(8.0), 4);
  const json report = metrics.report();
  EXPECT_EQ(report.at("accuracy"), 2.0 / 4);
  EXPECT_NEAR(report.at("perplexity"), 8.0, 1e-12);  // exp of a rounded logarithm
  EXPECT_NEAR(report.at("loss"), std::log(8.0), 1e-15);
}

TEST(Metrics, TheLargestPlaceIsTheFirstOfEqualsAndNoneBesideNan) {
  const at::Tensor output = floats({1, 3, 3, 0, 7, 2, 7, 7, kNan, 1, 2, 3, 5, 4, 3, kNan}, {4, 4});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor places = largest_places(output.to(type));
    for (const auto& [row, place] :
         {std::pair{0, 1}, std::pair{1, 0}, std::pair{2, -1}, std::pair{3, -1}})
      EXPECT_EQ(places[row].item<int64_t>(), place) << c10::toString(type) << " " << row;
  }
}

TEST(Metrics, OfValuesByHand) {
  Metrics metrics(Task::kValues, 1);
  add(metrics, floats({1, 2, 5, 4}, {2, 2}), floats({1, 4, 4, kNan}, {2, 2}), 5, 3);
  const json report = metrics.report();
  EXPECT_EQ(report.at("mse"), 5.0 / 3);
  EXPECT_EQ(report.at("mae"), 1.0);
  // targets 1, 4, 4: squares about their mean are 4 + 1 + 1
  EXPECT_NEAR(report.at("r2"), 1 - 5.0 / 6, 1e-15);
}

TEST(Metrics, R2IsRightWhereTheMeanIsFarLargerThanTheSpread) {
  Metrics metrics(Task::kValues, 1);
  // beyond 2^23, where floats are whole numbers; the sum of the squares needs 57 bits
  const float far = 8388611;
  std::vector<float> targets, outputs;
  double sum = 0, squares = 0;
  for (int i = 0; i < 1001; ++i) {
    const int offset = i * 7 % 5;
    targets.push_back(far + static_cast<float>(offset)), outputs.push_back(far);
    sum += offset, squares += offset * offset;
  }
  add(metrics, floats(outputs, {1001, 1}), floats(targets, {1001, 1}));
  EXPECT_EQ(metrics.report().at("mse"), squares / 1001);
  // a few roundings
  EXPECT_NEAR(metrics.report().at("r2"), 1 - squares / (squares - sum * sum / 1001), 1e-12);
}

TEST(Metrics, R2OfTargetsThatAreAllTheSameIsOneOrNothing) {
  Metrics right(Task::kValues, 1), wrong(Task::kValues, 1);
  add(right, floats({0.1F, 0.1F, 0.1F}, {3, 1}), floats({0.1F, 0.1F, 0.1F}, {3, 1}));
  add(wrong, floats({0.1F, 0.2F, 0.1F}, {3, 1}), floats({0.1F, 0.1F, 0.1F}, {3, 1}));
  EXPECT_EQ(right.report().at("r2"), 1.0);
  EXPECT_EQ(wrong.report().at("r2"), 0.0);
}

TEST(Metrics, OfReconstructionCompareWithTheFirstDataAndLeavePaddedRowsOut) {
  Metrics metrics(Task::kReconstruct, 0);
  const std::vector<at::Tensor> data{floats({1, 2, 3, 4, 9, 9}, {3, 1, 2}), longs({0, 7, -1})};
  metrics.add(6, 4, floats({1, 3, 3, 2, 0, 0}, {3, 2}), data, kBorders);
  const json report = metrics.report();
  EXPECT_EQ(report.at("mse"), 5.0 / 4);
  EXPECT_EQ(report.at("mae"), 3.0 / 4);
  EXPECT_EQ(report.at("r2"), 0.0);  // 1 2 3 4: squares about the mean are 5
}

TEST(Metrics, OfAnEvaluationWithoutTargetsAreTheLossAlone) {
  for (Task task : {Task::kLoss, Task::kTokens, Task::kClasses, Task::kBinary, Task::kValues,
                    Task::kReconstruct}) {
    Metrics metrics(task, 2);
    EXPECT_EQ(metrics.report(), (json{{"loss", 0.0}}));
    metrics.merge(Metrics(task, 2).bytes());
    EXPECT_EQ(metrics.report(), (json{{"loss", 0.0}}));
  }
  Metrics padded(Task::kClasses, 2);
  add(padded, floats({1, 2}, {1, 2}), longs({-1}), 0, 0);
  EXPECT_EQ(padded.report(), (json{{"loss", 0.0}}));
  EXPECT_EQ(metrics_table(json::object(), {}), "");
}

TEST(Metrics, OfALossAloneNeedNoTargets) {
  Metrics metrics(Task::kLoss, 0);
  metrics.add(6, 3, at::Tensor(), {}, {});
  EXPECT_EQ(metrics.report(), (json{{"loss", 2.0}}));
}

struct MicroBatch {
  at::Tensor output;
  std::vector<at::Tensor> data;
  double loss, count;
};

std::vector<MicroBatch> random_batches(Task task, unsigned seed) {
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal;
  std::vector<MicroBatch> batches;
  const int64_t rows = 8, columns = task == Task::kClasses || task == Task::kTokens ? 5 : 3;
  for (int b = 0; b < 13; ++b) {
    std::vector<float> output(rows * columns), original(rows * columns);
    // Rounded, so that there are ties; of all sizes, so that the order of a plain sum would show.
    for (float& v : output)
      v = std::round(normal(draw) * 4) * std::exp2(static_cast<float>(draw() % 20) - 10);
    for (float& v : original) v = normal(draw) * std::exp2(static_cast<float>(draw() % 20) - 10);
    at::Tensor targets;
    if (task == Task::kClasses || task == Task::kTokens || task == Task::kReconstruct) {
      std::vector<int64_t> list(rows);
      for (int64_t& t : list) t = static_cast<int64_t>(draw() % 6) - 1;
      targets = longs(list);
    } else {
      std::vector<float> list(rows * columns);
      for (float& t : list)
        t = draw() % 7 == 0         ? kNan
            : task == Task::kBinary ? static_cast<float>(draw() % 2)
                                    : normal(draw);
      targets = floats(list, {rows, columns});
    }
    batches.push_back({floats(output, {rows, columns}),
                       {floats(original, {rows, columns}), targets},
                       normal(draw) * std::exp2(static_cast<double>(draw() % 60)),
                       1 + 0.1 * static_cast<double>(draw() % 9)});
  }
  return batches;
}

TEST(Metrics, AreTheSameBitsHoweverTheMicroBatchesAreDealtOut) {
  for (Task task : {Task::kLoss, Task::kTokens, Task::kClasses, Task::kBinary, Task::kValues,
                    Task::kReconstruct}) {
    for (unsigned seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE("task " + std::to_string(static_cast<int>(task)) + ", seed " +
                   std::to_string(seed));
      const auto batches = random_batches(task, seed);
      Metrics whole(task, 5);
      for (const auto& b : batches) whole.add(b.loss, b.count, b.output, b.data, kBorders);
      std::mt19937 draw(seed);
      const size_t ranks = 1 + draw() % 5;
      std::vector<Metrics> parts(ranks, Metrics(task, 5));
      for (size_t i = batches.size(); i-- > 0;) {
        const auto& b = batches[i];
        parts[draw() % ranks].add(b.loss, b.count, b.output, b.data, kBorders);
      }
      Metrics merged(task, 5);
      for (size_t r = 0; r < ranks; ++r) merged.merge(parts[(r + seed) % ranks].bytes());
      ASSERT_GT(whole.report().size(), task == Task::kLoss ? 0u : 1u);
      // dump prints enough digits to tell doubles apart
      EXPECT_EQ(merged.report().dump(), whole.report().dump());
    }
  }
}

TEST(Metrics, BeyondTheMostTargetsThereIsNoAucWhoeverHoldsThem) {
  const int64_t half = int64_t{1} << 21;
  at::Tensor output = at::zeros({half, 1}), targets = at::zeros({half, 1});
  output[0] = 1, targets[0] = 1;
  Metrics first(Task::kBinary, 1), second(Task::kBinary, 1), one(Task::kBinary, 1);
  add(first, output, targets);
  add(second, output, targets);
  add(one, floats({1}, {1, 1}), floats({1}, {1, 1}));
  Metrics merged(Task::kBinary, 1);
  merged.merge(first.bytes());
  merged.merge(second.bytes());
  EXPECT_EQ(merged.report().at("auc"), 1.0);
  merged.merge(one.bytes());
  EXPECT_FALSE(merged.report().contains("auc"));
  EXPECT_EQ(merged.report().at("recall"), 1.0);
  merged.merge(one.bytes());
  EXPECT_FALSE(merged.report().contains("auc"));
  add(first, output, targets);
  EXPECT_TRUE(first.report().contains("auc"));
  add(first, floats({1}, {1, 1}), floats({1}, {1, 1}));
  EXPECT_FALSE(first.report().contains("auc"));
  add(first, floats({1}, {1, 1}), floats({1}, {1, 1}));
  EXPECT_FALSE(first.report().contains("auc"));
}

TEST(Metrics, BytesOfAnotherKindAreRefused) {
  Metrics metrics(Task::kClasses, 3);
  const std::string bytes = metrics.bytes();
  EXPECT_THROW(metrics.merge(Metrics(Task::kClasses, 4).bytes()), Error);
  EXPECT_THROW(metrics.merge(Metrics(Task::kBinary, 3).bytes()), Error);
  EXPECT_THROW(metrics.merge(bytes.substr(0, bytes.size() - 1)), Error);
  EXPECT_THROW(metrics.merge(bytes + "x"), Error);
  EXPECT_THROW(metrics.merge(""), Error);
}

TEST(Metrics, DataWithoutTargetsIsAnErrorThatNamesThem) {
  Metrics metrics(Task::kClasses, 3);
  const std::vector<at::Tensor> data{at::zeros({1})};
  try {
    metrics.add(0, 1, at::zeros({1, 3}), data, {{"features", {1}}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "the data has no \"targets\" to evaluate by");
  }
}

TEST(Metrics, AWatchedMetricIsOneThatTheReportHas) {
  for (Task task : {Task::kLoss, Task::kTokens, Task::kClasses, Task::kBinary, Task::kValues,
                    Task::kReconstruct}) {
    Metrics metrics(task, 5);
    for (const auto& b : random_batches(task, 1))
      metrics.add(b.loss, b.count, b.output, b.data, kBorders);
    for (const std::string& name : metric_names(task))
      EXPECT_TRUE(metrics.report().contains(name)) << name;
  }
}

TEST(MetricsTable, AlignsAveragesClassesAndConfusion) {
  Metrics metrics(Task::kClasses, 3);
  add(metrics, floats({5, 0, 0, 5, 0, 0, 0, 5, 0, 0, 5, 0, 0, 0, 5}, {5, 3}),
      longs({0, 1, 1, 1, 0}), 10, 5);
  EXPECT_EQ(metrics_table(metrics.report(), {"Kleid", "Stiefel, grün", "T"}),
            "loss       2.0000\n"
            "accuracy   0.6000\n"
            "precision  0.7500\n"
            "recall     0.5833\n"
            "f1         0.6500\n"
            "auc        0.7083\n"
            "\n"
            "class          precision  recall      f1     auc  count\n"
            "Kleid             0.5000  0.5000  0.5000  0.5833      2\n"
            "Stiefel, grün     1.0000  0.6667  0.8000  0.8333      3\n"
            "T                 0.0000  0.0000  0.0000       -      0\n"
            "\n"
            "is \\ taken for     0  1  2\n"
            "Kleid           0  1  ·  1\n"
            "Stiefel, grün   1  1  2  ·\n"
            "T               2  ·  ·  ·\n");
  const std::string numbered = metrics_table(metrics.report(), {});
  EXPECT_NE(numbered.find("is \\ taken for  0  1  2\n0               1  ·  1\n"), std::string::npos)
      << numbered;
}

TEST(MetricsTable, ShortensLongNamesAndLeavesLargeConfusionsOut) {
  Metrics metrics(Task::kClasses, 21);
  add(metrics, at::zeros({1, 21}), longs({0}));
  std::vector<std::string> names(21, "n");
  names[0] = "a name that is much too long, ä";
  names[1] = "ääääääääääääääääääääääääääää";
  const std::string table = metrics_table(metrics.report(), names);
  EXPECT_EQ(table.find("taken for"), std::string::npos);
  EXPECT_NE(table.find("\na name that is much too…  "), std::string::npos) << table;
  EXPECT_NE(table.find("\näääääääääääääääääääääää…  "), std::string::npos) << table;
}

TEST(MetricsTable, HasTheFirstHundredOfManyClasses) {
  Metrics metrics(Task::kClasses, 1000);
  add(metrics, at::zeros({1, 1000}), longs({0}));
  const std::string table = metrics_table(metrics.report(), {});
  EXPECT_LT(std::count(table.begin(), table.end(), '\n'), 120);
  EXPECT_TRUE(table.ends_with("and 900 more: metrics.jsonl has them\n"))
      << table.substr(table.size() - 200);
}

}  // namespace
}  // namespace tutti
