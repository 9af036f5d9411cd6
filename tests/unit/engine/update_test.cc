// What the commit does to each parameter: groups, frozen ones, buffers, and LAMB's two passes.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"
#include "config/job_parts.h"
#include "engine/updater.h"
#include "model/adapt/adaptor.h"

namespace tutti {
namespace {

constexpr int64_t kLong = 3 * kChunk + 77;

/// Two blocks: parameters of several chunks, a small one, and both kinds of buffers.
Model made_model() {
  const Border in{"features", {2, 1}}, out{"hidden", {2, 1}}, loss{"loss", {2}, at::kDouble};
  const Init normal{Init::Kind::kNormal, 1, {}};
  Model model;
  model.data = {in};
  std::vector<Parameter> first = {{"weight", {kLong}, normal, ""}, {"bias", {7}, normal, ""}};
  std::vector<Parameter> second = {{"weight", {40}, normal, ""},
                                   {"mean", {3}, normal, "", Role::kMeanBuffer},
                                   {"sum", {3}, normal, "", Role::kSumBuffer}};
  model.blocks.push_back(
      adapt("stem", std::move(first),
            [](Tensors, Tensors x) { return std::vector<at::Tensor>{x[0].clone()}; }, {in}, {out}));
  model.blocks.push_back(
      adapt("head", std::move(second),
            [](Tensors, Tensors) { return std::vector<at::Tensor>{at::zeros({2}, at::kDouble)}; },
            {out}, {loss}));
  return model;
}

Job job_with(const std::string& train) { return parse_job("[train]\n" + train, "job", {}); }

/// A model's values after updates by keyed gradients.
class Updated {
 public:
  explicit Updated(const Job& job)
      : updater_(job, shape_),
        units_(model_, shape_, all_held(shape_), updater_.slots(), 5, {}, accounts_) {}

  /// One step; every parameter's gradient is cut at the given chunks.
  /// `on_ranks`: as if each piece were on a rank of its own.
  void step(int64_t number, double lr, const std::vector<int64_t>& cuts = {}, int64_t proposals = 1,
            bool on_ranks = false) {
    StepScalars scalars;
    scalars.step = number;
    scalars.lr = lr;
    for (size_t unit = 0; unit < shape_.blocks.size(); ++unit) {
      const auto& parameters = shape_.blocks[unit].parameters;
      for (size_t p = 0; p < parameters.size(); ++p) {
        gradient_.resize(static_cast<size_t>(parameters[p].size));
        for (size_t i = 0; i < gradient_.size(); ++i) gradient_[i] = gradient(unit, p, i, number);
        std::vector<GradientPiece> pieces;
        int64_t begin = 0;
        std::vector<std::vector<float>> apart;  // as on a real rank: slices are in different places
        apart.reserve(cuts.size() + 1);
        for (size_t c = 0; c <= cuts.size(); ++c) {
          const int64_t end =
              c < cuts.size() ? std::min(cuts[c] * kChunk, parameters[p].size) : parameters[p].size;
          if (end <= begin) continue;
          apart.emplace_back(gradient_.begin() + begin, gradient_.begin() + end);
          pieces.push_back({parameters[p].offset + begin, end - begin, apart.back().data()});
          begin = end;
        }
        update(static_cast<int>(unit), p, pieces, scalars, proposals, on_ranks);
      }
    }
  }
  void update(int unit, size_t p, std::span<const GradientPiece> pieces, const StepScalars& scalars,
              int64_t proposals, bool on_ranks) {
    if (!on_ranks) return updater_.update(units_, unit, p, pieces, scalars, proposals);
    Norms norms;
    for (size_t i = 0; i < pieces.size(); ++i)
      norms.merge(updater_.measure(units_, unit, p, pieces.subspan(i, 1), scalars));
    for (size_t i = 0; i < pieces.size(); ++i)
      updater_.update(units_, unit, p, pieces.subspan(i, 1), scalars, proposals, &norms);
  }
  static float gradient(size_t unit, size_t parameter, size_t i, int64_t step) {
    return static_cast<float>(
        philox_normal({9, Purpose::kTest, unit * 10 + parameter, static_cast<uint64_t>(step)}, i));
  }
  std::vector<float> values(const std::string& name) const {
    for (const StateEntry& entry : units_.state({}).entries)
      if (entry.name == name && entry.slot == "parameter")
        return {entry.values.begin(), entry.values.end()};
    ADD_FAILURE() << "no parameter is called " << name;
    return {};
  }
  std::string hash() const { return state_hash(units_.state({})); }
  const Updater& updater() const { return updater_; }

 private:
  Model model_ = made_model();
  ModelShape shape_ = describe(model_);
  Accounts accounts_;
  Updater updater_;
  Units units_;
  std::vector<float> gradient_;
};

TEST(Updater, LeavesWhatIsFrozenAndCountsItInNoNorm) {
  Updated frozen(
      job_with("optimizer = \"sgd\"\ngroups = [\"stem.w* frozen\", \"head.mean frozen\"]\n"));
  const auto weight = frozen.values("stem.weight"), bias = frozen.values("stem.bias"),
             mean = frozen.values("head.mean");
  frozen.step(0, 0.1);
  EXPECT_EQ(frozen.values("stem.weight"), weight);
  EXPECT_EQ(frozen.values("head.mean"), mean);
  EXPECT_NE(frozen.values("stem.bias"), bias);
  EXPECT_FALSE(frozen.updater().counts(0, 0));
  EXPECT_TRUE(frozen.updater().counts(0, 1));
  EXPECT_TRUE(frozen.updater().counts(1, 0));
  EXPECT_FALSE(frozen.updater().counts(1, 1));  // buffers never do
  EXPECT_FALSE(frozen.updater().counts(1, 2));
}

TEST(Updater, MultipliesTheRateByTheGroupsFactor) {
  Updated grouped(job_with("optimizer = \"sgd\"\ngroups = [\"stem.* lr=0.25\"]\n")),
      plain(job_with("optimizer = \"sgd\"\n"));
  const auto before = plain.values("stem.bias");
  grouped.step(0, 0.5);
  plain.step(0, 0.5);
  const auto slow = grouped.values("stem.bias"), fast = plain.values("stem.bias");
  for (size_t i = 0; i < before.size(); ++i) {
    const float gradient = Updated::gradient(0, 1, i, 0);
    EXPECT_FLOAT_EQ(fast[i], before[i] - 0.5F * gradient);
    EXPECT_FLOAT_EQ(slow[i], before[i] - 0.125F * gradient);
  }
  EXPECT_EQ(grouped.values("head.weight"), plain.values("head.weight"));
}

TEST(Updater, DecaysEachGroupByItsOwnWeight) {
  const std::string sgd = "optimizer = \"sgd\"\nweight_decay = 0.5\n";
  Updated grouped(
      job_with(sgd + "groups = [\"*.bias weight_decay=0\", \"head.* weight_decay=0.25\"]\n"));
  std::vector<std::vector<float>> before;
  const std::vector<std::string> names = {"stem.weight", "stem.bias", "head.weight"};
  for (const std::string& name : names) before.push_back(grouped.values(name));
  grouped.step(0, 0.1);
  const std::vector<float> decay = {0.5F, 0, 0.25F};
  for (size_t n = 0; n < names.size(); ++n) {
    const auto after = grouped.values(names[n]);
    for (size_t i = 0; i < std::min<size_t>(after.size(), 40); ++i) {
      const float gradient = Updated::gradient(n / 2, n % 2, i, 0) + decay[n] * before[n][i];
      // one rounding more or less
      EXPECT_NEAR(after[i], before[n][i] - 0.1F * gradient, 1e-6) << names[n];
    }
  }
}

TEST(Updater, GivesAParameterToTheFirstGroupThatFits) {
  Updated first(
      job_with("optimizer = \"sgd\"\ngroups = [\"stem.bias lr=1\", \"stem.* frozen\"]\n"));
  const auto bias = first.values("stem.bias"), weight = first.values("stem.weight");
  first.step(0, 0.1);
  EXPECT_NE(first.values("stem.bias"), bias);
  EXPECT_EQ(first.values("stem.weight"), weight);
}

TEST(Updater, RefusesAGroupThatFitsNothing) {
  try {
    Updated refused(job_with("groups = [\"*.bias frozen\", \"stam.* lr=0.1\"]\n"));
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "train.groups: \"stam.*\" fits no parameter; the first is called stem.weight");
  }
}

TEST(Updater, ABufferBecomesTheMeanOfTheProposalsOrGrowsByTheirSum) {
  for (const char* optimizer : {"sgd", "adamw", "lamb"}) {
    Updated buffers(
        job_with(std::string("weight_decay = 0.1\nclip_by = \"value\"\noptimizer = \"") +
                 optimizer + "\"\n"));
    const auto sum = buffers.values("head.sum");
    buffers.step(0, 0.1, {}, 6);
    const auto mean = buffers.values("head.mean"), grown = buffers.values("head.sum");
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(mean[i], Updated::gradient(1, 1, i, 0) / 6.0F) << optimizer;
      EXPECT_EQ(grown[i], sum[i] + Updated::gradient(1, 2, i, 0)) << optimizer;
    }
  }
}

TEST(Updater, OfEveryOptimizerDoesNotDependOnTheCutIntoPieces) {
  for (const std::string& optimizer : names_of<OptimizerPart>()) {
    const Job job = job_with("weight_decay = 0.1\noptimizer = \"" + optimizer + "\"\n");
    std::string expected;
    for (const std::vector<int64_t>& cuts :
         std::vector<std::vector<int64_t>>{{}, {1}, {2, 3}, {1, 2, 3}}) {
      Updated pieces(job);
      const std::string start = pieces.hash();
      for (int64_t step = 0; step < 3; ++step) pieces.step(step, 0.01, cuts);
      EXPECT_NE(pieces.hash(), start);
      if (expected.empty()) expected = pieces.hash();
      EXPECT_EQ(pieces.hash(), expected) << optimizer << " cut at " << testing::PrintToString(cuts);
    }
  }
}

TEST(Updater, OfTwoPassesIsTheSameInPartsWithTheNormsOfAll) {
  const Job job = job_with(
      "optimizer = \"lamb\"\nweight_decay = 0.1\ngroups = [\"stem.* lr=0.5 weight_decay=0.2\"]\n");
  Updated whole(job), parts(job);
  for (int64_t step = 0; step < 3; ++step) {
    whole.step(step, 0.01);
    parts.step(step, 0.01, {1, 3}, 1, true);
  }
  EXPECT_EQ(parts.hash(), whole.hash());
}

TEST(Updater, LambsTrustIsThatOfTheWholeParameter) {
  const Job job =
      job_with("optimizer = \"lamb\"\nweight_decay = 0\nbeta1 = 0.9\nbeta2 = 0.999\neps = 1e-6\n");
  Updated lamb(job);
  const auto before = lamb.values("stem.weight");
  lamb.step(0, 0.01, {2});
  const auto after = lamb.values("stem.weight");
  // In the first step both moments, corrected, are the gradient: the direction is g / (|g| + eps).
  double parameter = 0, direction = 0;
  std::vector<double> turned;
  for (size_t i = 0; i < before.size(); ++i) {
    const double g = Updated::gradient(0, 0, i, 0);
    turned.push_back(g / (std::abs(g) + 1e-6));
    parameter += double{before[i]} * before[i];
    direction += turned.back() * turned.back();
  }
  const double trust = std::sqrt(parameter / direction);
  for (size_t i = 0; i < before.size(); i += 101)  // float32 moments and their corrections
    EXPECT_NEAR(after[i], before[i] - 0.01 * trust * turned[i], 1e-5) << i;
}

}  // namespace
}  // namespace tutti
