#include "data/tables/table.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "config/job.h"
#include "data/core/sources.h"
#include "unit/data/files_case.h"
#include "unit/data/table_case.h"

namespace tutti {
namespace {

using namespace table_case;  // NOLINT(google-build-using-namespace)
using Floats = std::vector<float>;
using Texts = std::vector<std::string>;

/// The results of part(group) on so many ranks, in rank order.
template <typename Part>
auto on_ranks(int size, Part part) {
  std::vector<decltype(part(DataGroup{}))> results(static_cast<size_t>(size));
  files_case::over_group(size, [&](const DataGroup& group) {
    results[static_cast<size_t>(group.rank)] = part(group);
  });
  return results;
}

std::vector<int64_t> first(int64_t n) {
  std::vector<int64_t> records(static_cast<size_t>(n));
  std::iota(records.begin(), records.end(), 0);
  return records;
}

Table numbers(const std::string& column, const std::string& values,
              const DataConfig& config = plain()) {
  DataReport report;
  return parse_csv("x,y\n" + values, "x.csv", config,
                   columns_of({"x: number " + column, "y: target"}), report);
}

/// One column, cleaned by the statistics of all its records.
Floats cleaned(const std::string& column, const std::string& values,
               const DataConfig& config = plain()) {
  Table table = numbers(column, values, config);
  auto statistics = statistics_of(table, first(table.records), {});
  treat_outliers(table, statistics, config, "x.csv");
  fill_and_scale(table, statistics_of(table, first(table.records), {}));
  return table.numbers;
}

TEST(Clean, StatisticsAreThoseCountedByHand) {
  const Table table = numbers("", "1,0\n2,0\n3,0\n10,0\n");
  const auto s = statistics_of(table, std::vector<int64_t>{0, 1, 3}, {})[0];
  EXPECT_EQ(s.count, 3);
  EXPECT_DOUBLE_EQ(s.mean, 13.0 / 3);
  EXPECT_DOUBLE_EQ(s.deviation, std::sqrt((100.0 / 9 + 49.0 / 9 + 289.0 / 9) / 3));
  EXPECT_EQ(s.low, 1);
  EXPECT_EQ(s.high, 10);
}

TEST(Clean, TheDeviationOfLargeNumbersDoesNotCancel) {
  const Table table = numbers("", "16777210,0\n16777212,0\n16777214,0\n");
  EXPECT_DOUBLE_EQ(statistics_of(table, first(3), {})[0].deviation, std::sqrt(8.0 / 3));
}

TEST(Clean, ScalesAreThoseAsked) {
  EXPECT_EQ(cleaned("", "1,0\n3,0\n"), (Floats{1, 3}));
  EXPECT_EQ(cleaned("standardise", "1,0\n3,0\n"), (Floats{-1, 1}));
  EXPECT_EQ(cleaned("min-max", "1,0\n2,0\n5,0\n"), (Floats{0, 0.25, 1}));
  EXPECT_EQ(cleaned("log", "0,0\n1,0\n"), (Floats{0, std::log1p(1.0f)}));
  EXPECT_EQ(cleaned("log min-max", "0,0\n1,0\n3,0\n"), (Floats{0, 0.5, 1}));
  EXPECT_EQ(cleaned("standardise", "7,0\n7,0\n"), (Floats{0, 0}));
  EXPECT_EQ(cleaned("min-max", "7,0\n7,0\n"), (Floats{0, 0}));
  EXPECT_EQ(fault([] { numbers("log", "-1,0\n"); }), "x.csv:2:1 (x): \"-1\" has no log(1 + x)");
}

TEST(Clean, MissingNumbersAreTheMeanZeroOrDroppedRecords) {
  DataConfig config = plain();
  config.missing = MissingValue::kMean;
  EXPECT_EQ(cleaned("", "1,0\n,0\n5,0\n", config), (Floats{1, 3, 5}));
  EXPECT_EQ(cleaned("standardise", "1,0\n,0\n5,0\n", config), (Floats{-1, 0, 1}));
  config.missing = MissingValue::kZero;
  EXPECT_EQ(cleaned("", "1,0\n,0\n5,0\n", config), (Floats{1, 0, 5}));
  EXPECT_EQ(cleaned("min-max", "1,0\n,0\n5,0\n", config), (Floats{0.2f, 0, 1}));
  config.missing = MissingValue::kDrop;
  EXPECT_EQ(cleaned("", "1,0\n,0\n5,\n7,0\n", config), (Floats{1, 7}));
  DataReport report;
  parse_csv("x,y\n1,2\n,3\n", "x.csv", config, columns_of({"x: number", "y: target"}), report);
  EXPECT_EQ(report.skipped, 1);
  EXPECT_EQ(report.faults, Texts{"x.csv:3:1 (x): the value is missing"});
  config.missing = MissingValue::kMean;  // says nothing of targets
  EXPECT_EQ(fault([&] { numbers("", "1,\n", config); }), "x.csv:2:2 (y): the value is missing");
}

TEST(Clean, OutliersAreKeptClippedOrDropped) {
  std::string values;
  for (int i = 0; i < 50; ++i) values += "1,0\n-1,0\n";  // mean 0.99, deviation 9.95 with the 100
  values += "100,0\n";
  DataConfig config = plain();
  config.outlier_limit = 3;
  EXPECT_EQ(cleaned("", values, config).back(), 100);
  config.outliers = Outliers::kClip;
  Table table = numbers("", values, config);
  const auto statistics = statistics_of(table, first(101), {});
  treat_outliers(table, statistics, config, "x.csv");
  EXPECT_FLOAT_EQ(table.numbers.back(),
                  static_cast<float>(statistics[0].mean + 3 * statistics[0].deviation));
  EXPECT_EQ(table.numbers.front(), 1);
  config.outliers = Outliers::kDrop;
  table = numbers("", values, config);
  const auto outliers = treat_outliers(table, statistics, config, "x.csv");
  ASSERT_EQ(outliers.size(), 1u);
  EXPECT_EQ(outliers[0].record, 100);
  EXPECT_EQ(outliers[0].what,
            "x.csv:102 (x): 100 is more than 3 deviations from the mean 0.990099");
}

TEST(Clean, StatisticsHaveTheSameBitsForEveryNumberOfRanks) {
  std::string text = "a,b,y\n";
  for (uint64_t i = 0; i < 997; ++i) {
    const PhiloxKey key{.seed = 5, .purpose = Purpose::kTest, .a = i, .b = 0};
    text += fmt::format("{},{},0\n", 1e6 * philox_normal(key, 0) + 1e7,
                        i % 7 == 0 ? "" : fmt::format("{}", i * 0.1));
  }
  DataConfig config = plain();
  config.missing = MissingValue::kMean;
  DataReport report;
  const Table table =
      parse_csv(text, "x.csv", config, columns_of({"a: number", "b: number", "y: target"}), report);
  const std::vector<int64_t> train = first(900);
  const auto alone = statistics_of(table, train, {});
  for (const int ranks : {2, 3, 5}) {
    for (const auto& theirs : on_ranks(
             ranks, [&](const DataGroup& group) { return statistics_of(table, train, group); })) {
      for (size_t k = 0; k < 2; ++k) {
        EXPECT_EQ(theirs[k].count, alone[k].count);
        EXPECT_EQ(std::bit_cast<uint64_t>(theirs[k].mean), std::bit_cast<uint64_t>(alone[k].mean))
            << ranks;
        EXPECT_EQ(std::bit_cast<uint64_t>(theirs[k].deviation),
                  std::bit_cast<uint64_t>(alone[k].deviation))
            << ranks;
        EXPECT_EQ(theirs[k].low, alone[k].low);
        EXPECT_EQ(theirs[k].high, alone[k].high);
      }
    }
  }
  EXPECT_EQ(alone[1].count, 771);
}

class OpenTable : public files_case::FilesTest {
 protected:
  static Job job(const std::string& path, const Texts& columns, const std::string& model = "mlp") {
    Job job;
    job.data = plain();
    job.data.kind = path.ends_with(".jsonl") ? "jsonl" : "csv";
    job.data.path = path;
    job.data.columns = columns;
    job.data.held_out = 0.2;
    job.model.kind = model;
    job.model.outputs = 1;
    job.model.classes = 2;
    job.loss.kind = model == "wide-deep" ? "bce" : "cross-entropy";
    job.train.seed = 3;
    return job;
  }
  static std::string refusal(const Job& job) {
    return fault([&] { open_csv(job, {}); });
  }
};

/// The records of a file of n lines whose number is the line's.
std::string counted(int n) {
  std::string text = "x,kind,city,w,y\n";
  for (int i = 0; i < n; ++i)
    text += fmt::format("{},{},c{},{},{}\n", i, i % 3 == 0 ? "a" : "b", i % 5, i % 4, i % 2);
  return text;
}

TEST_F(OpenTable, AnMlpReadsNumbersAndOneHotsAndItsClass) {
  Job j = job(write("t.csv", counted(50)),
              {"kind: one-hot a|b", "x: number", "y: target classes=2", "w: weight"});
  j.data.held_out = 0;
  const Split split = open_csv(j, {});
  ASSERT_EQ(split.train->size(), 50);
  EXPECT_EQ(split.held_out->size(), 0);
  EXPECT_EQ(split.test, nullptr);
  auto tensors = allocate({{"features", {2, 3}, at::kFloat}, {"targets", {2}, at::kLong}});
  split.train->read(7, tensors, 1);
  split.train->read(6, tensors, 0);
  EXPECT_EQ(Floats(tensors[0].const_data_ptr<float>(), tensors[0].const_data_ptr<float>() + 6),
            (Floats{1, 0, 6, 0, 1, 7}));
  EXPECT_EQ(tensors[1][0].item<int64_t>(), 0);
  EXPECT_EQ(tensors[1][1].item<int64_t>(), 1);
  EXPECT_EQ(split.train->label(7), 1);
  EXPECT_EQ(split.train->weight(7), 3);
  EXPECT_EQ(split.train->feature(3, "kind"), split.train->feature(6, "kind"));
  EXPECT_NE(split.train->feature(3, "kind"), split.train->feature(7, "kind"));
  EXPECT_NE(split.train->feature(3, "x"), split.train->feature(6, "x"));
  EXPECT_EQ(fault([&] { split.train->feature(3, "kid"); }),
            "data.columns have no column \"kid\"; did you mean \"kind\"?");
}

TEST_F(OpenTable, WideDeepReadsNumbersCategoriesAndAFloatTarget) {
  Job j =
      job(write("t.csv", counted(50)),
          {"city: category hash=16", "x: number", "kind: category a|b", "y: target"}, "wide-deep");
  j.data.held_out = 0;
  const Split split = open_csv(j, {});
  auto tensors = allocate({{"numbers", {1, 1}, at::kFloat},
                           {"categories", {1, 2}, at::kLong},
                           {"targets", {1, 1}, at::kFloat}});
  split.train->read(7, tensors, 0);
  EXPECT_EQ(tensors[0].item<float>(), 7);
  EXPECT_EQ(tensors[1][0][1].item<int64_t>(), 1);
  EXPECT_EQ(tensors[2].item<float>(), 1);
  EXPECT_EQ(split.train->label(7), -1);
}

TEST_F(OpenTable, ScalesComeFromTheTrainingRecordsAloneAndServeTheTestFile) {
  Job j = job(write("t.csv", counted(200)), {"x: number standardise", "y: target classes=2"});
  j.data.test = write("test.csv", "y,x\n1,1000\n0,-5\n");
  const Split split = open_csv(j, {});
  EXPECT_EQ(split.train->size() + split.held_out->size(), 200);
  const Parts parts = split_records(j, 200, "");
  double sum = 0, squares = 0;
  for (const int64_t record : parts.train) sum += static_cast<double>(record);
  const double n = static_cast<double>(parts.train.size()), mean = sum / n;
  for (const int64_t record : parts.train)
    squares += std::pow(static_cast<double>(record) - mean, 2);
  const double deviation = std::sqrt(squares / n);
  auto tensors = allocate({{"features", {1, 1}, at::kFloat}, {"targets", {1}, at::kLong}});
  const auto value = [&](const Dataset& data, int64_t record) {
    data.read(record, tensors, 0);
    return tensors[0].item<float>();
  };
  EXPECT_FLOAT_EQ(value(*split.train, 5),
                  static_cast<float>((static_cast<double>(parts.train[5]) - mean) / deviation));
  EXPECT_FLOAT_EQ(value(*split.held_out, 2),
                  static_cast<float>((static_cast<double>(parts.held_out[2]) - mean) / deviation));
  ASSERT_EQ(split.test->size(), 2);
  EXPECT_FLOAT_EQ(value(*split.test, 0), static_cast<float>((1000 - mean) / deviation));
  ASSERT_EQ(split.report.statistics.size(), 1u);
  EXPECT_EQ(split.report.statistics[0],
            fmt::format("x mean {:.6g} deviation {:.6g} min {} max {} of {} records", mean,
                        deviation, parts.train.front(), parts.train.back(), n));
}

TEST_F(OpenTable, EveryRankOfAGroupGetsTheSameRecords) {
  Job j = job(write("t.csv", counted(200)), {"x: number standardise", "y: target classes=2"});
  j.data.outliers = Outliers::kDrop;
  j.data.outlier_limit = 1.5;
  const auto digest = [&](const DataGroup& group) {
    const Split split = open_csv(j, group);
    auto tensors = allocate({{"features", {1, 1}, at::kFloat}, {"targets", {1}, at::kLong}});
    std::vector<uint32_t> bits{static_cast<uint32_t>(split.report.skipped)};
    for (int64_t i = 0; i < split.train->size(); ++i) {
      split.train->read(i, tensors, 0);
      bits.push_back(std::bit_cast<uint32_t>(tensors[0].item<float>()));
    }
    return bits;
  };
  const auto alone = digest({});
  EXPECT_GT(alone[0], 10u);
  EXPECT_LT(alone.size(), 180u);
  for (const int ranks : {2, 3, 5}) {
    for (const auto& theirs : on_ranks(ranks, digest)) EXPECT_EQ(theirs, alone) << ranks;
  }
}

TEST_F(OpenTable, ClassNamesAndSkippedRecordsAreReported) {
  std::string text = "{\"x\": 1, \"y\": \"cat\"}\n{\"x\": \n";
  for (int i = 0; i < 30; ++i) text += fmt::format("{{\"x\": {}, \"y\": \"dog\"}}\n", i);
  Job j = job(write("t.jsonl", text), {"x: number", "y: target cat|dog"});
  j.data.bad = BadRecord::kSkip;
  const Split split = open_jsonl(j, {});
  EXPECT_EQ(split.report.classes, (Texts{"cat", "dog"}));
  EXPECT_EQ(split.report.skipped, 1);
  EXPECT_EQ(split.report.faults.size(), 1u);
  EXPECT_EQ(split.train->size() + split.held_out->size(), 31);
}

TEST_F(OpenTable, ColumnsThatDoNotFitTheModelAreRefused) {
  const std::string path = write("t.csv", counted(50));
  EXPECT_EQ(
      refusal(job(path, {})),
      "data.columns is empty: name the columns that are read\n"
      "data.columns: the loss needs classes: \"name: target first|second\" or target classes=N");
  EXPECT_EQ(refusal(job(path, {"x: number", "y: target classes=3"})),
            "model.classes = 2 but the target of data.columns has 3");
  EXPECT_EQ(refusal(job(path, {"city: category hash=4", "y: target classes=2"})),
            "data.columns: model.kind = \"mlp\" has no embeddings; make categories one-hot");
  EXPECT_EQ(refusal(job(path, {"x: number"}, "wide-deep")),
            "model.outputs = 1 but data.columns have 0 targets");
  Job weights = job(path, {"x: number", "y: target classes=2"});
  weights.data.resample = Resample::kColumn;
  EXPECT_EQ(refusal(weights), "data.resample = \"column\" but none of data.columns is a weight");
}

TEST_F(OpenTable, FilesWithoutRecordsAndEmptyPartsAreNamed) {
  const Texts columns = {"x: number", "y: target classes=2"};
  const std::string empty = write("empty.csv", ""), header = write("header.csv", "x,y\n");
  EXPECT_EQ(refusal(job(empty, columns)), empty + ": the file is empty");
  EXPECT_EQ(refusal(job(header, columns)), header + ": the file has no records");
  const std::string lone = write("lone.csv", "x,y\n1,1\n");
  EXPECT_TRUE(refusal(job(lone, columns))
                  .starts_with(lone + ": data.held_out = 0.2 of 1 records leaves none for "));
  const std::string bad = write("bad.csv", "x,y\nb,1\n");
  Job skip = job(bad, columns);
  skip.data.bad = BadRecord::kSkip;
  EXPECT_EQ(refusal(skip), bad + ": no record can be used; the first fault: " + bad +
                               ":2:1 (x): \"b\" is not a number");
  Job none = job(write("none.csv", "x,y\n,1\n,1\n,0\n,1\n,0\n"), columns);
  none.data.missing = MissingValue::kMean;
  none.data.held_out = 0;
  EXPECT_EQ(refusal(none), none.data.path + ": no training record has a value in column x");
  Job chance =
      job(write("chance.csv", "x,y\n1,0.5\n1,2\n"), {"x: number", "y: target"}, "wide-deep");
  EXPECT_EQ(refusal(chance), chance.data.path + ":3:2 (y): \"2\" is not between 0 and 1");
  Job test = job(write("t.csv", counted(50)), columns);
  test.data.test = bad;
  EXPECT_EQ(refusal(test), bad + ":2:1 (x): \"b\" is not a number");
}

TEST(Table, ATargetThatIsANumberIsNoPaddingOfAModelWithoutTargets) {
  const auto records =
      make_table(std::make_shared<const Table>(numbers("", "1,-1\n2,1e30\n")), false);
  // an autoencoder's
  const auto tensors = allocate({{"features", {2, 1}}, {"targets", {2}, at::kLong}});
  for (int64_t row = 0; row < 2; ++row) {
    records->read(row, tensors, row);
    EXPECT_EQ(tensors[1].const_data_ptr<int64_t>()[row], 0);
  }
}

}  // namespace
}  // namespace tutti
