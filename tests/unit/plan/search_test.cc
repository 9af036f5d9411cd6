#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "plan/search/choose.h"
#include "plan/search/timeline_svg.h"
#include "support/gpt_model_shape.h"

namespace tutti {

namespace {

SearchRequest request_of(int ranks, Batch batch = {8, 2, 1}) {
  SearchRequest request;
  request.ranks = ranks;
  request.base.batch = batch;
  request.cost.calibration = default_calibration(DeviceKind::kCpu, 8);
  return request;
}

/// What a job leaves open that sets these keys and no other.
SearchSpace given(const std::vector<Setting>& settings) { return {parse_job("", "job", settings)}; }

ModelShape gpt(int columns = 2) {
  return test::gpt_model_shape({.layers = 6, .length = 128, .columns = columns});
}

bool rejected(const SearchResult& result, const std::string& reason, const std::string& layout) {
  return std::any_of(result.rejected.begin(), result.rejected.end(), [&](const Rejection& r) {
    return r.reason.find(reason) != std::string::npos &&
           std::find(r.layouts.begin(), r.layouts.end(), layout) != r.layouts.end();
  });
}

}  // namespace

TEST(Search, EveryMeshOfTheRanksIsRankedOrRejectedWithAReason) {
  const SearchResult result = search_layouts(gpt(), request_of(8));
  std::set<std::string> meshes;
  const auto note = [&](const std::string& name) { meshes.insert(name.substr(0, name.find(','))); };
  for (const Candidate& c : result.best) note(layout_name(c.options));
  for (const Rejection& r : result.rejected)
    for (const std::string& name : r.layouts) note(name);
  EXPECT_EQ(meshes.size(), 10u);  // 8 = d * t * p
  EXPECT_TRUE(
      std::is_sorted(result.best.begin() + 1, result.best.end(),
                     [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; }));
  EXPECT_TRUE(rejected(result, "4 tensor ranks", "data 2 x tensor 4 x pipeline 1"));
  EXPECT_TRUE(rejected(result, "fold = \"owner\"", "data 8 x tensor 1 x pipeline 1, fold owner"));
  for (const Candidate& c : result.best) {
    EXPECT_EQ(c.options.mesh.ranks(), 8);
    EXPECT_TRUE(mesh_faults(gpt(), c.options).empty());
    EXPECT_GT(c.seconds, 0);
    EXPECT_GT(c.memory.total(), 0);
  }
}

TEST(Search, LayoutsThatDifferInOffloadHaveNamesOfTheirOwn) {
  MeshOptions options;
  options.mesh = {2, 1, 1, 1};
  EXPECT_EQ(layout_name(options), "data 2 x tensor 1 x pipeline 1");
  options.offload = Offload::kOptimizer;
  EXPECT_EQ(layout_name(options), "data 2 x tensor 1 x pipeline 1, offload optimizer");
  options.offload = Offload::kAll, options.fold = FoldKind::kOwner;
  EXPECT_EQ(layout_name(options), "data 2 x tensor 1 x pipeline 1, offload all, fold owner");
}

TEST(Search, ALayoutThatIdlesForMoreThanAFifthSaysWhyAndWhatMendsIt) {
  // 8 stages and one lane: few micro-batches leave most stages waiting, and many do not.
  const ModelShape model = test::gpt_model_shape({.layers = 14, .length = 128});
  const auto first = [&](int micro_batches) {
    SearchRequest request = request_of(8, {1, micro_batches, 1});
    request.space = given({{"layout.schedule", "1f1b"}});
    return search_layouts(model, request).best.front();
  };
  const std::string warning = idle_warning(first(2));
  EXPECT_TRUE(warning.find("2 micro-batches are too few for 8 stages") != std::string::npos)
      << warning;
  EXPECT_TRUE(warning.find("train.micro_batches = 28 (another job) brings it to a fifth") !=
              std::string::npos)
      << warning;
  EXPECT_LT(first(28).bubble, 0.3);
  EXPECT_EQ(idle_warning(first(64)), "");

  Candidate uneven;
  uneven.options.mesh = {4, 1, 1, 1};
  uneven.options.batch = {5, 1, 1};
  uneven.bubble = 0.3;
  EXPECT_TRUE(idle_warning(uneven).starts_with(
      "its ranks idle for 30 % of the step: 5 lanes are not shared out evenly"));
  uneven.bubble = 0.2;
  EXPECT_EQ(idle_warning(uneven), "");
}

TEST(Search, TheSimplestOfThoseThatAreAsGoodComesFirst) {
  SearchRequest request = request_of(2, {2, 1, 1});
  const ModelShape model = gpt(1);
  for (const BlockShape& b : model.blocks)  // so much work that nothing that travels counts
    request.cost.measured.emplace_back(b.segments.size(), SegmentSeconds{1, 1, 1});
  const SearchResult result = search_layouts(model, request);
  ASSERT_GT(result.best.size(), 4u);
  const MeshOptions& first = result.best.front().options;
  EXPECT_TRUE(first.mesh.data == 2 && first.zero <= 1 && !first.owner()) << layout_name(first);
  EXPECT_LT(result.best.front().seconds, 1.02 * result.best[1].seconds);
}

TEST(Search, WhatIsGivenIsKept) {
  SearchRequest request = request_of(8);
  request.space =
      given({{"layout.pipeline", "4"}, {"layout.zero", "1"}, {"layout.schedule", "zero-bubble"}});
  const SearchResult result = search_layouts(gpt(), request);
  ASSERT_FALSE(result.best.empty());
  for (const Candidate& c : result.best) {
    EXPECT_EQ(c.options.mesh.pipeline, 4);
    EXPECT_EQ(c.options.zero, 1);
    EXPECT_EQ(c.options.schedule, "zero-bubble");
  }
}

TEST(Search, AKeyThatIsNotSearchedIsNoneOfTheSpace) {
  EXPECT_FALSE(given({}).has(&LayoutConfig::pipeline));
  EXPECT_TRUE(given({{"layout.fold", "root"}}).has(&LayoutConfig::fold));
  EXPECT_FALSE(given({{"layout.zero", "auto"}}).has(&LayoutConfig::zero));
  EXPECT_DEATH(static_cast<void>(given({}).has(&LayoutConfig::depth)), "no row marks as searched");
}

TEST(Search, AMemoryLimitIsKeptByWhatIsFound) {
  SearchRequest request = request_of(8);
  const SearchResult all = search_layouts(gpt(), request);
  int64_t least = all.best.front().memory.total(), most = least;
  for (const Candidate& c : all.best) {
    least = std::min(least, c.memory.total());
    most = std::max(most, c.memory.total());
  }
  ASSERT_LT(least, most);
  request.memory = least + (most - least) / 20;
  const SearchResult some = search_layouts(gpt(), request);
  ASSERT_FALSE(some.best.empty());
  EXPECT_LT(some.best.size(), all.best.size() * 3);
  for (const Candidate& c : some.best)
    EXPECT_LE(c.memory.total(), request.memory) << layout_name(c.options);
  EXPECT_FALSE(some.nearest.empty());
}

TEST(Search, WhereNothingFitsTheNearestAreNamed) {
  SearchRequest request = request_of(4);
  request.memory = 1 << 20;
  Job job = parse_job("", "empty", {});
  try {
    choose_layout(job, gpt(), request);
    ADD_FAILURE() << "something fits into a mebibyte";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.faults()[0], "no layout of 4 ranks fits into 1 MiB per rank; the nearest:");
    ASSERT_GT(e.faults().size(), 1u);
    EXPECT_NE(e.faults()[1].find(" needs "), std::string::npos) << e.faults()[1];
  }
  EXPECT_EQ(job.layout.pipeline, 1);
}

TEST(Search, MoreRanksThanTheJobHasWorkForAreRefusedWithTheMost) {
  SearchRequest request = request_of(256);
  const ModelShape model = gpt();
  const SearchResult result = search_layouts(model, request);
  ASSERT_TRUE(result.best.empty());
  const std::vector<std::string> faults = no_layout_faults(result, request);
  const int most = request.base.batch.lanes * model.columns * model.layers();
  ASSERT_LT(most, 256);
  EXPECT_EQ(faults[0], "no layout of 256 ranks can run this job:");
  EXPECT_EQ(faults[1],
            fmt::format("  it has work for {} ranks at most: {} lanes x {} columns x {} blocks",
                        most, request.base.batch.lanes, model.columns, model.layers()));
  EXPECT_LT(faults.size(), 10u) << "a reason for every number";
}

TEST(Search, ReasonsThatDifferInNumbersAloneAreOne) {
  const auto all =
      merged({{"16 stages of 6", {"a", "b"}}, {"8 stages of 6", {"c"}}, {"no stages", {"d"}}});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].reason, "16 stages of 6");
  EXPECT_EQ(all[0].layouts, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(all[1].reason, "no stages");
}

TEST(Search, TheChoiceIsWrittenIntoTheJobWhereItSaysNothing) {
  Job job = parse_job("[layout]\npipeline = 2\n", "job.toml", {});
  const Candidate chosen = choose_layout(job, gpt(), request_of(4));
  EXPECT_EQ(job.layout.pipeline, 2);
  EXPECT_EQ(job.origin["layout.pipeline"].text(), "job.toml:2");
  EXPECT_EQ(job.layout.ranks, 4);
  EXPECT_EQ(job.origin["layout.ranks"].text(), "planned");
  EXPECT_EQ(job.layout.tensor, chosen.options.mesh.tensor);
  EXPECT_EQ(job.layout.zero, chosen.options.zero);
  EXPECT_EQ(job.layout.schedule, chosen.options.schedule);
}

TEST(Search, TheJobMayRefuseForItsOwnReasons) {
  SearchRequest request = request_of(4);
  request.refuse = [](const MeshOptions& o) { return o.zero > 0 ? "lamb" : ""; };
  const SearchResult result = search_layouts(gpt(), request);
  for (const Candidate& c : result.best) EXPECT_EQ(c.options.zero, 0);
  EXPECT_TRUE(rejected(result, "lamb", "data 4 x tensor 1 x pipeline 1, zero 1"));
}

TEST(Search, SlicesStayInsideHostsOrGoOverAll) {
  SearchRequest request = request_of(8);
  for (int rank = 0; rank < 8; ++rank) request.cost.hosts.push_back(rank / 4);
  request.space = given({{"layout.pipeline", "1"}, {"layout.tensor", "1"}, {"layout.zero", "1"}});
  std::set<int> shards;
  for (const Candidate& c : search_layouts(gpt(), request).best)
    shards.insert(c.options.mesh.shards);
  EXPECT_EQ(shards, (std::set<int>{4, 8}));
}

TEST(Search, TheLargestMicroBatchLeavesRoomForTheState) {
  MemoryForecast memory;
  memory.bytes[static_cast<size_t>(BufferKind::kParameter)] = 100;
  memory.bytes[static_cast<size_t>(BufferKind::kSaved)] = 40;  // of 4 samples
  EXPECT_EQ(largest_micro_batch(memory, 4, 200), 10);
  EXPECT_EQ(largest_micro_batch(memory, 4, 100), 0);
}

TEST(Search, APictureHasEveryRankAndMicroBatch) {
  SearchRequest request = request_of(4, {4, 1, 1});
  MeshOptions options = request.base;
  options.mesh = {1, 1, 4, 1};
  const Rehearsal shown = rehearse(gpt(), request, options, false);
  const std::string svg = timeline_svg(shown.programs, shown.simulation, "four stages");
  EXPECT_TRUE(svg.starts_with("<svg"));
  for (const char* text : {"four stages", "rank 0", "rank 3", "Forward", "Backward", "Update"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
}

}  // namespace tutti
