// Evaluation over lanes: the same metrics however the lanes are dealt to ranks, and what padding
// adds: nothing.
#include "eval/evaluate.h"

#include <gtest/gtest.h>

#include <set>

#include "base/philox.h"
#include "config/model_rules.h"
#include "model/make_model.h"
#include "support/flat_model.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr int64_t kInputs = 3, kRecords = 23;

/// Points whose class is one of four, or two targets of a regression.
class Points final : public Dataset {
 public:
  int64_t size() const override { return kRecords; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    const PhiloxKey key{1, Purpose::kTest, static_cast<uint64_t>(record), 0};
    for (int64_t i = 0; i < kInputs; ++i)
      tensors[0].mutable_data_ptr<float>()[row * kInputs + i] =
          static_cast<float>(philox_normal(key, static_cast<uint64_t>(i)));
    if (tensors[1].scalar_type() == at::kLong) {
      tensors[1].mutable_data_ptr<int64_t>()[row] = record % 4;
    } else {
      for (int64_t k = 0; k < 2; ++k)
        tensors[1].mutable_data_ptr<float>()[row * 2 + k] = static_cast<float>(record % 5 + k);
    }
  }
};

Job job_of(const std::string& loss, int64_t rows, double dropout) {
  Job job = parse_job(R"(
[model]
kind = "mlp"
inputs = 3
hidden = [5]
classes = 4
outputs = 2
init_scale = 0.5
[data]
kind = "points"
)",
                      "job", {});
  resolve(job, this_machine(), {});
  job.loss.kind = loss;
  job.model.dropout = dropout;
  job.train.micro_batch_size = rows;
  return job;
}

/// A whole model on a rank, which computes some of the lanes.
class WholePlacement final : public Placement {
 public:
  WholePlacement(const Model& model, ModelRunner& runner, Range lanes)
      : model_(model), runner_(runner), lanes_(lanes) {}
  bool computes(int lane) const override { return lanes_.contains(lane); }
  std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) override {
    runner_.forward_all(pass, data);
    return Evaluated{runner_.loss(), runner_.border(model_.output), data};
  }
  int64_t output_width() override { return runner_.border(model_.output).size(-1); }

 private:
  const Model& model_;
  ModelRunner& runner_;
  const Range lanes_;
};

/// What rank 0 reports; all ranks must report the same.
nlohmann::json report_of(const std::string& loss, int64_t rows, int lanes,
                         const std::vector<Range>& owned, int64_t records = kRecords,
                         double dropout = 0.3) {
  const auto ranks = static_cast<int>(owned.size());
  std::vector<nlohmann::json> reports(owned.size());
  over({"inproc", "inproc", true, false}, ranks, [&](TestRank& me) {
    FlatModel flat(make_model(job_of(loss, rows, dropout)), 4);
    Channel channel(me.transport, me.clock, {64, 79}, std::chrono::seconds(20));
    const Batch batch{lanes, 1, static_cast<int>(rows)};
    WholePlacement placement(flat.model, *flat.runner, owned[static_cast<size_t>(me.rank)]);
    const Metrics metrics =
        evaluate(flat.model, placement, Points(), records, batch, 1, 7, channel);
    reports[static_cast<size_t>(me.rank)] = metrics.report();
  });
  for (const auto& report : reports) EXPECT_EQ(report.dump(), reports[0].dump());
  return reports[0];
}

std::vector<Range> dealt(int lanes, int ranks) {
  std::vector<Range> owned;
  for (int r = 0; r < ranks; ++r) owned.push_back(lanes_of(r, ranks, lanes));
  return owned;
}

TEST(Evaluate, IsTheSameForEveryDealOfTheLanes) {
  for (const char* loss : {"cross-entropy", "mse", "bce"}) {
    SCOPED_TRACE(loss);
    const auto expected = report_of(loss, 4, 5, dealt(5, 1));
    EXPECT_TRUE(std::isfinite(expected.at("loss").get<double>()));
    for (int ranks : {2, 3, 5})
      EXPECT_EQ(report_of(loss, 4, 5, dealt(5, ranks)).dump(), expected.dump()) << ranks;
    EXPECT_EQ(report_of(loss, 4, 5, {{0, 1}, {1, 4}, {4, 5}}).dump(), expected.dump());
    // A rank whose lanes get no micro-batch takes part all the same.
    EXPECT_EQ(report_of(loss, 4, 9, dealt(9, 3)).dump(), report_of(loss, 4, 9, dealt(9, 1)).dump());
  }
}

/// A model that is cut over two ranks as far as evaluation can tell: both take part, the odd one
/// has the results.
class CutPlacement final : public Placement {
 public:
  CutPlacement(Placement& whole, Channel& channel, std::set<int> lanes)
      : whole_(whole), channel_(channel), lanes_(std::move(lanes)) {}
  bool computes(int lane) const override { return lanes_.contains(lane); }
  std::optional<Evaluated> forward(const Pass& pass, const std::vector<at::Tensor>& data) override {
    const bool last = channel_.rank() % 2 == 1;
    int64_t sample = pass.first_sample;
    const auto bytes = std::as_writable_bytes(std::span(&sample, 1));
    if (last) {
      channel_.recv(channel_.rank() - 1, bytes);
    } else {
      channel_.send(channel_.rank() + 1, bytes);
    }
    EXPECT_EQ(sample, pass.first_sample);
    if (!last) return std::nullopt;
    return whole_.forward(pass, data);
  }
  int64_t output_width() override { return whole_.output_width(); }

 private:
  Placement& whole_;
  Channel& channel_;
  const std::set<int> lanes_;
};

TEST(Evaluate, CountsAMicroBatchOfAModelThatIsCutOverRanksOnce) {
  for (const char* loss : {"cross-entropy", "mse"}) {
    std::vector<std::string> reports(4);
    over({"inproc", "inproc", true, false}, 4, [&](TestRank& me) {
      FlatModel flat(make_model(job_of(loss, 4, 0)), 4);
      Channel channel(me.transport, me.clock, {64, 79}, std::chrono::seconds(20));
      const Batch batch{5, 1, 4};
      WholePlacement whole(flat.model, *flat.runner, {0, 5});
      CutPlacement cut(whole, channel,
                       me.rank / 2 == 0 ? std::set<int>{0, 2, 4} : std::set<int>{1, 3});
      reports[static_cast<size_t>(me.rank)] =
          evaluate(flat.model, cut, Points(), kRecords, batch, 1, 7, channel).report().dump();
    });
    const std::string expected = report_of(loss, 4, 5, dealt(5, 1), kRecords, 0).dump();
    for (const std::string& report : reports) EXPECT_EQ(report, expected);
  }
}

TEST(Evaluate, LeavesPaddingOut) {
  const auto whole = report_of("cross-entropy", 23, 1, dealt(1, 1)),
             padded = report_of("cross-entropy", 7, 2, dealt(2, 1));
  int64_t count = 0;
  for (const auto& row : padded.at("confusion"))
    for (int64_t n : row) count += n;
  EXPECT_EQ(count, kRecords);
  EXPECT_EQ(padded.at("confusion"), whole.at("confusion"));
  // Matmuls of 7 and of 23 rows may round otherwise.
  EXPECT_NEAR(padded.at("loss").get<double>(), whole.at("loss").get<double>(), 1e-6);
  const auto values = report_of("mse", 7, 2, dealt(2, 1)),
             all = report_of("mse", 23, 1, dealt(1, 1));
  EXPECT_NEAR(values.at("mse").get<double>(), all.at("mse").get<double>(), 1e-6);
  EXPECT_NEAR(values.at("mse").get<double>(), values.at("loss").get<double>(), 1e-6);
}

TEST(Evaluate, LooksAtTheFirstRecordsOnly) {
  const auto some = report_of("cross-entropy", 4, 5, dealt(5, 2), 10);
  int64_t count = 0;
  for (const auto& row : some.at("confusion"))
    for (int64_t n : row) count += n;
  EXPECT_EQ(count, 10);
  EXPECT_NE(some.at("loss"), report_of("cross-entropy", 4, 5, dealt(5, 2)).at("loss"));
}

TEST(Evaluate, DropsNothing) {
  const auto with = report_of("mse", 4, 5, dealt(5, 1)),
             without = report_of("mse", 4, 5, dealt(5, 1), kRecords, 0);
  EXPECT_EQ(with.dump(), without.dump());
}

}  // namespace
}  // namespace tutti
