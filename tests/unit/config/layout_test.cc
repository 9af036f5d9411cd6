// Which meshes a job may ask for: what makes up the ranks, what is refused and with which values
// that work. The file is longer than most, because each refusal is compared with its whole text.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "config/job.h"
#include "config/model_rules.h"

namespace tutti {

namespace {

using Faults = std::vector<std::string>;
using Settings = std::vector<Setting>;
const Machine kEight{8, CodePath::kAvx512};

// gpt-kjv has 8 lanes, 6 heads, width 192, vocab 256.
Job resolved(const Settings& settings, const Machine& machine = kEight,
             const char* name = "gpt-kjv") {
  Job job = load_job(name, settings);
  resolve(job, machine, {});
  return job;
}

Faults faults_of(const Settings& settings, const Machine& machine = kEight,
                 const char* name = "gpt-kjv") {
  try {
    resolved(settings, machine, name);
  } catch (const ConfigError& error) {
    return error.faults();
  }
  return {};
}

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// Settings that once made a job a mesh, one each.
const std::vector<std::pair<Settings, std::string>> kMeshes = {
    {{{"layout.zero", "1"}}, "layout.zero = 1"},
    {{{"train.tensor_slices", "2"}, {"layout.tensor", "2"}}, "layout.tensor = 2"},
    {{{"layout.pipeline", "2"}}, "layout.pipeline = 2"},
    {{{"numerics.order", "micro"}}, "numerics.order = \"micro\""},
    {{{"train.tensor_slices", "2"}}, "train.tensor_slices = 2"},
    {{{"layout.recompute", "selective"}}, "layout.recompute = \"selective\""},
    {{{"layout.offload", "optimizer"}}, "layout.offload = \"optimizer\""},
    {{{"layout.fold", "owner"}, {"train.micro_batches", "1"}}, "layout.fold = \"owner\""},
};

}  // namespace

TEST(ModelMayRefuse, WhatDependsOnItsBlocksOrOnAFolder) {
  for (const Settings& settings :
       std::vector<Settings>{{},
                             {{"layout.fold", "root"}},
                             {{"layout.zero", "3"}},
                             {{"layout.recompute", "full"}},
                             {{"numerics.order", "micro"}},
                             {{"numerics.reduce", "ring"}, {"layout.partition", "hash"}}})
    EXPECT_FALSE(model_may_refuse(resolved(settings))) << settings.size();
  for (const Settings& settings :
       std::vector<Settings>{{{"layout.pipeline", "2"}},
                             {{"train.tensor_slices", "2"}, {"layout.tensor", "2"}},
                             {{"train.tensor_slices", "2"}},
                             {{"layout.offload", "optimizer"}},
                             {{"layout.offload", "all"}},
                             {{"layout.fold", "owner"}, {"train.micro_batches", "1"}}})
    EXPECT_TRUE(model_may_refuse(resolved(settings))) << settings[0].key;
}

TEST(AutomaticZero, IsOneWhereDataRanksOfOneHostShareWindows) {
  const auto zero = [](const Settings& settings) { return resolved(settings).layout.zero; };
  EXPECT_EQ(zero({{"layout.ranks", "2"}}), 1) << "shm";
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"layout.workers", "thread"}}), 1) << "inproc";
  EXPECT_EQ(zero({{"layout.ranks", "4"}, {"layout.pipeline", "2"}}), 1) << "two data ranks";
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"layout.zero", "auto"}}), 1) << "as if it were left out";
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"layout.offload", "optimizer"}}), 1);
}

TEST(AutomaticZero, IsNoneElsewhere) {
  const auto zero = [](const Settings& settings) { return resolved(settings).layout.zero; };
  EXPECT_EQ(zero({{"layout.ranks", "1"}}), 0) << "one rank";
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"layout.pipeline", "2"}}), 0) << "one data rank";
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"layout.transport", "tcp"}}), 0);
  EXPECT_EQ(zero({{"layout.ranks", "4"}, {"layout.hosts", "2"}}), 0);
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"layout.fold", "root"}}), 0);
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"numerics.reduce", "ring"}}), 0);
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"layout.offload", "all"}}), 0);
  EXPECT_EQ(zero({{"layout.ranks", "2"}, {"train.optimizer", "lamb"}}), 0);
}

TEST(AutomaticZero, IsSaidToBeResolvedAndGivesWayToANumber) {
  EXPECT_EQ(resolved({{"layout.ranks", "2"}}).origin.at("layout.zero").text(), "resolved");
  for (const char* stage : {"0", "1", "2", "3"}) {
    const Job job = resolved({{"layout.ranks", "2"}, {"layout.zero", stage}});
    EXPECT_EQ(std::to_string(job.layout.zero), stage);
    EXPECT_EQ(job.origin.at("layout.zero").text(), "--set");
  }
}

TEST(AutomaticZero, TakesNothingButItsStagesAndAuto) {
  EXPECT_EQ(
      faults_of({{"layout.zero", "two"}}),
      Faults{"--set layout.zero=two: layout.zero must be an integer or \"auto\", not \"two\""});
  EXPECT_EQ(faults_of({{"layout.zero", "1.5"}}),
            Faults{"--set layout.zero=1.5: layout.zero must be an integer or \"auto\", not 1.5"});
  EXPECT_EQ(faults_of({{"layout.zero", "7"}}),
            Faults{"--set layout.zero=7: layout.zero = 7 is out of range: it must be from 0 to 3"});
  EXPECT_EQ(
      faults_of({{"layout.zero", "-1"}}),
      Faults{"--set layout.zero=-1: layout.zero = -1 is out of range: it must be from 0 to 3"})
      << "as auto is stored";
  EXPECT_EQ(faults_of({{"layout.zero", "99999999999999999999"}}),
            Faults{"--set layout.zero=99999999999999999999: layout.zero = 99999999999999999999 is "
                   "out of range: it "
                   "must be from 0 to 3"});
}

TEST(Layout, AutomaticRanksAreWholeReplicasAndAtMostOneALane) {
  const Settings six = {
      {"train.tensor_slices", "2"}, {"layout.tensor", "2"}, {"layout.pipeline", "3"}};
  EXPECT_EQ(resolved({{"layout.pipeline", "3"}}).layout.ranks, 6);
  EXPECT_EQ(resolved({{"layout.pipeline", "3"}}, {64, CodePath::kAvx512}).layout.ranks, 24);
  EXPECT_EQ(resolved(six).layout.ranks, 6);
  EXPECT_EQ(resolved(six, {2, CodePath::kAvx512}).layout.ranks, 6)
      << "one replica, however few the cores";
}

TEST(Layout, MeshesThatMakeUpTheRanksAreTaken) {
  for (const Settings& settings : std::vector<Settings>{
           {{"layout.ranks", "16"}, {"layout.pipeline", "2"}},
           {{"layout.ranks", "32"},
            {"layout.pipeline", "4"},
            {"layout.schedule", "zbv"},
            {"layout.zero", "1"}},
           {{"layout.ranks", "8"},
            {"layout.pipeline", "2"},
            {"layout.schedule", "interleaved"},
            {"layout.chunks", "3"}},
           {{"layout.ranks", "3"},
            {"layout.pipeline", "3"},
            {"layout.cut", "\"blocks.1,blocks.3\""}},
           {{"layout.ranks", "6"},
            {"layout.zero", "3"},
            {"layout.shards", "3"},
            {"layout.depth", "2"}},
           {{"layout.ranks", "3"},
            {"layout.tensor", "3"},
            {"train.tensor_slices", "6"},
            {"model.vocab", "258"},
            {"train.micro_batch_size", "6"}},
           {{"layout.ranks", "5"},
            {"layout.fold", "owner"},
            {"train.micro_batches", "4"},
            {"numerics.order", "micro"}},
           {{"train.optimizer", "lamb"}, {"layout.pipeline", "2"}},
       }) {
    EXPECT_EQ(faults_of(settings), Faults{}) << settings[1].key;
  }
}

TEST(Layout, AMeshThatDoesNotMakeUpTheRanksIsRefusedWithThoseThatDo) {
  EXPECT_EQ(faults_of({{"layout.ranks", "4"}, {"layout.pipeline", "3"}}),
            Faults{"layout.pipeline = 3 with layout.ranks = 4: data ranks are ranks / (tensor x "
                   "pipeline), a whole "
                   "number; these work: pipeline = 1, 2 or 4; ranks = 3 or 6"});
  EXPECT_EQ(
      faults_of({{"layout.ranks", "9"}, {"layout.tensor", "2"}, {"train.tensor_slices", "2"}}),
      Faults{"layout.tensor = 2 with layout.ranks = 9: data ranks are ranks / (tensor x pipeline), "
             "a whole "
             "number; these work: ranks = 8 or 10"})
      << "tensor = 1 has more data ranks than lanes, 3 and 9 more ranks than columns";
  EXPECT_EQ(faults_of({{"layout.ranks", "8"},
                       {"layout.tensor", "2"},
                       {"layout.pipeline", "3"},
                       {"train.tensor_slices", "2"}}),
            Faults{"layout.tensor x layout.pipeline = 2 x 3 with layout.ranks = 8: data ranks are "
                   "ranks / (tensor x "
                   "pipeline), a whole number; these work: pipeline = 1, 2 or 4; ranks = 6 or 12"});
  EXPECT_EQ(faults_of({{"layout.ranks", "1"}, {"layout.pipeline", "2"}}),
            Faults{"layout.pipeline = 2 with layout.ranks = 1: data ranks are ranks / (tensor x "
                   "pipeline), a whole "
                   "number; these work: pipeline = 1; ranks = 2"});
}

TEST(Layout, WhatIsSaidToWorkIsNotRefusedForKeysThatThenSayNothing) {
  const auto hint = [](const Settings& settings) {
    const Faults faults = faults_of(settings);
    return faults.size() == 1 ? faults[0].substr(faults[0].find("these work: ")) : "";
  };
  const Settings uneven = {
      {"layout.ranks", "4"}, {"layout.pipeline", "3"}, {"layout.schedule", "gpipe"}};
  EXPECT_EQ(hint(uneven), "these work: pipeline = 2 or 4; ranks = 3 or 6")
      << "one stage has no schedule";
  EXPECT_EQ(hint({{"layout.ranks", "5"}, {"layout.pipeline", "2"}, {"layout.hosts", "5"}}),
            "these work: pipeline = 1 or 5; ranks = 6")
      << "4 ranks are fewer than the hosts";
  EXPECT_EQ(hint({{"train.optimizer", "lamb"}, {"layout.zero", "3"}, {"layout.depth", "2"}}),
            "these work: zero = 0 without layout.depth");
}

TEST(Layout, DataRanksAreAtMostTheLanes) {
  EXPECT_EQ(faults_of({{"layout.ranks", "36"}, {"layout.pipeline", "4"}}),
            Faults{"layout.ranks = 36 with layout.tensor x layout.pipeline = 1 x 4 has 9 data "
                   "ranks but train.lanes = "
                   "8: a data rank owns at least one lane; ask for at most 32 ranks, or for more "
                   "lanes, which is "
                   "another job"});
}

TEST(Layout, TensorRanksAreAtMostTheColumns) {
  EXPECT_EQ(
      faults_of({{"layout.tensor", "2"}}),
      Faults{"layout.tensor = 2 but train.tensor_slices = 1: a rank owns at least one column; "
             "ask for at most 1, or for more columns, which is another job"});
}

TEST(Layout, ShardsDivideTheDataRanks) {
  EXPECT_EQ(faults_of({{"layout.ranks", "8"},
                       {"layout.pipeline", "2"},
                       {"layout.zero", "2"},
                       {"layout.shards", "3"}}),
            Faults{"layout.shards = 3 with 4 data ranks: every slice has as many replicas as the "
                   "others; these work: "
                   "shards = 1, 2 or 4"});
  EXPECT_EQ(faults_of({{"layout.ranks", "4"}, {"layout.zero", "2"}, {"layout.shards", "8"}}).size(),
            1u);
}

TEST(Layout, KeysThatSayNothingAreRefused) {
  EXPECT_EQ(faults_of({{"layout.schedule", "zbv"}}),
            Faults{"layout.schedule = \"zbv\" but layout.pipeline = 1: there are no stages to "
                   "order or cut; leave it "
                   "out"});
  EXPECT_EQ(faults_of({{"layout.cut", "\"blocks.2\""}}).size(), 1u);
  EXPECT_EQ(faults_of({{"layout.chunks", "4"}}).size(), 1u);
  EXPECT_EQ(
      faults_of({{"layout.chunks", "4"}, {"layout.pipeline", "2"}, {"layout.schedule", "gpipe"}}),
      Faults{"layout.chunks = 4 but layout.schedule = \"gpipe\": only \"interleaved\" has chunks "
             "of one's own "
             "number; leave it out"});
  EXPECT_EQ(faults_of({{"layout.in_flight", "4"}}).size(), 1u);
  EXPECT_EQ(faults_of({{"layout.in_flight", "4"}, {"layout.pipeline", "2"}}),
            Faults{"layout.in_flight = 4 but layout.schedule = \"1f1b\": only \"zero-bubble\" and "
                   "\"zbv\" are made to "
                   "measure; leave it out"});
  EXPECT_EQ(faults_of({{"layout.shards", "2"}, {"layout.zero", "0"}}),
            Faults{"layout.shards = 2 but layout.zero = 0: nothing is sliced; leave it out"});
  EXPECT_EQ(
      faults_of({{"layout.depth", "2"}, {"layout.zero", "2"}}),
      Faults{"layout.depth = 2 but layout.zero = 2: only ZeRO-3 gathers units; leave it out"});
}

/// Where what is asked for is refused, of kMeshes.
std::set<std::string> refused_with(const Setting& asked) {
  std::set<std::string> refused;
  for (const auto& [settings, text] : kMeshes) {
    if (settings[0].key == asked.key) continue;
    const Faults faults = faults_of(with(settings, {asked}));
    EXPECT_LE(faults.size(), 1u) << text;
    if (faults.empty()) continue;
    EXPECT_NE(faults[0].find(asked.key + " = \"" + asked.value + "\" but " + text + ": "),
              std::string::npos)
        << faults[0];
    refused.insert(text);
  }
  return refused;
}

TEST(Layout, ARootARingAndPartitionsAreRefusedWhereTheyCannotWorkAndOnlyThere) {
  const std::string zero = "layout.zero = 1", tensor = "layout.tensor = 2",
                    pipeline = "layout.pipeline = 2", micro = "numerics.order = \"micro\"",
                    slices = "train.tensor_slices = 2";
  EXPECT_EQ(refused_with({"layout.fold", "root"}), (std::set{zero, tensor, pipeline, micro}));
  EXPECT_EQ(refused_with({"numerics.reduce", "ring"}),
            (std::set{zero, tensor, pipeline, micro, slices}));
  EXPECT_EQ(refused_with({"layout.partition", "hash"}), (std::set{tensor, pipeline}));
}

TEST(Layout, ARefusalOfARootOrARingNamesBothWaysOut) {
  EXPECT_EQ(faults_of({{"layout.fold", "root"}, {"layout.zero", "2"}}),
            Faults{"layout.fold = \"root\" but layout.zero = 2: a root sums whole gradients once "
                   "in a step; these work: "
                   "fold = \"local\"; zero = 0"});
  EXPECT_EQ(faults_of({{"numerics.reduce", "ring"}, {"layout.zero", "3"}, {"layout.depth", "2"}}),
            Faults{"numerics.reduce = \"ring\" but layout.zero = 3: a ring sums whole gradients "
                   "once in a step; these "
                   "work: reduce = \"exact\"; zero = 0 without layout.depth"});
  EXPECT_EQ(
      faults_of({{"numerics.reduce", "ring"}, {"numerics.order", "micro"}}),
      Faults{"numerics.reduce = \"ring\" but numerics.order = \"micro\": a ring sums whole "
             "gradients once in a "
             "step; these work: reduce = \"exact\"; order = \"lane\" (which is another job)"});
  EXPECT_EQ(faults_of({{"layout.partition", "even"}, {"layout.pipeline", "2"}}),
            Faults{"layout.partition = \"even\" but layout.pipeline = 2: records are exchanged "
                   "between data ranks "
                   "alone; these work: partition = \"lanes\"; pipeline = 1"});
}

TEST(Layout, ARootARingAndPartitionsWorkWhereZeroIsLeftToItself) {
  for (const Setting& asked : Settings{{"layout.fold", "root"}, {"numerics.reduce", "ring"}}) {
    EXPECT_EQ(faults_of({asked, {"layout.ranks", "4"}}), Faults{}) << asked.value;
    EXPECT_EQ(resolved({asked, {"layout.ranks", "4"}}).layout.zero, 0) << asked.value;
  }
  EXPECT_EQ(resolved({{"layout.partition", "hash"}, {"layout.ranks", "4"}}).layout.zero, 1);
}

TEST(Layout, OwnersNeedALaneToBeOneMicroBatch) {
  EXPECT_EQ(faults_of({{"layout.fold", "owner"}, {"train.micro_batches", "2"}}),
            Faults{"layout.fold = \"owner\" but train.micro_batches = 2 and numerics.order = "
                   "\"lane\": a lane's sum is "
                   "not there until its last micro-batch; these work: fold = \"local\"; "
                   "micro_batches = 1; order = "
                   "\"micro\" (the last two are another job)"});
}

TEST(Layout, LambIsRefusedWhereParametersAreSliced) {
  EXPECT_EQ(faults_of({{"train.optimizer", "lamb"}, {"layout.zero", "1"}}),
            Faults{"layout.zero = 1 but train.optimizer = \"lamb\": its steps go by norms of whole "
                   "parameters, and a "
                   "rank holds slices; these work: zero = 0"});
}

TEST(Layout, ACutNamesEveryBeginningButTheFirst) {
  EXPECT_EQ(faults_of({{"layout.pipeline", "2"},
                       {"layout.schedule", "zbv"},
                       {"layout.cut", "\"blocks.1,blocks.2\""}}),
            Faults{"layout.cut names 2 beginnings but 2 stages of 2 parts have 3 after the first"});
}

TEST(Layout, TheLastRankHasAPortToo) {
  const auto faults =
      faults_of({{"layout.port", "65535"}, {"layout.ranks", "3"}, {"layout.transport", "tcp"}});
  EXPECT_EQ(faults, Faults{"layout.port = 65535 with layout.ranks = 3: rank r listens on port + r, "
                           "and the last port "
                           "is 65535; ask for at most 65533, or for 0, which is any free one"});
  EXPECT_EQ(
      faults_of({{"layout.port", "65534"}, {"layout.ranks", "3"}, {"layout.hosts", "2"}}).size(),
      1u);
  EXPECT_EQ(
      faults_of({{"layout.port", "65533"}, {"layout.ranks", "3"}, {"layout.transport", "tcp"}}),
      Faults{});
  EXPECT_EQ(
      faults_of({{"layout.port", "65535"}, {"layout.ranks", "3"}, {"layout.transport", "shm"}}),
      Faults{});
}

TEST(Columns, AModelThatIsNotDefinedInColumnsIsRefused) {
  Job job = load_job("fashion-mlp", {{"train.tensor_slices", "2"}});
  job.model.kind = "custom";
  try {
    resolve(job, kEight, {});
    ADD_FAILURE() << "resolved";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.faults(), Faults{"train.tensor_slices = 2 but model.kind = \"custom\": "
                                     "\"gpt\", \"mlp\" and \"cnn\" are defined "
                                     "in columns; these work: tensor_slices = 1"});
  }
}

TEST(Layout, AMeshOfGpusIsTaken) {
  Machine machine = kEight;
  machine.gpus.assign(8, Gpu{"NVIDIA H200", int64_t{141} << 30, int64_t{140} << 30, 9, 0});
  for (const auto& [settings, text] : kMeshes)
    EXPECT_EQ(faults_of(settings, machine), Faults{}) << text;
  EXPECT_EQ(faults_of({{"layout.offload", "all"}, {"layout.offload_folder", "/fast"}}, machine),
            Faults{"layout.offload_folder is set but numerics.device = \"cuda\": offloaded values "
                   "are in the host's "
                   "memory there, not in a file; leave it out"});
}

TEST(Layout, AFaultNamesTheLineOfTheMesh) {
  Job job = parse_job("base = \"gpt-kjv\"\n[layout]\nranks = 4\npipeline = 3\n", "my.toml", {});
  try {
    resolve(job, kEight, {});
    ADD_FAILURE() << "resolved";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what())
                  .rfind("my.toml:4: layout.pipeline = 3 with layout.ranks = 4: ", 0),
              0u)
        << error.what();
  }
}

TEST(ForgetIdleKeys, ARunThatLeavesItsMeshKeepsNothingOfIt) {
  const std::string text = to_toml(resolved({{"layout.ranks", "4"},
                                             {"layout.pipeline", "2"},
                                             {"layout.schedule", "interleaved"},
                                             {"layout.chunks", "3"},
                                             {"layout.zero", "3"},
                                             {"layout.depth", "2"},
                                             {"layout.shards", "2"}}));
  Job same = parse_job(text, "job.toml", {});
  forget_idle_keys(same, kEight);
  resolve(same, kEight, {});
  EXPECT_EQ(to_toml(same), text);
  Job plain = parse_job(text, "job.toml", {{"layout.pipeline", "1"}, {"layout.zero", "0"}});
  forget_idle_keys(plain, kEight);
  resolve(plain, kEight, {});
  EXPECT_EQ(plain.layout.schedule, "1f1b");
  EXPECT_EQ(plain.layout.shards, 0);
  EXPECT_EQ(plain.layout.depth, 1);
  Job automatic =
      parse_job(text, "job.toml", {{"layout.zero", "auto"}, {"layout.transport", "tcp"}});
  forget_idle_keys(automatic, kEight);
  resolve(automatic, kEight, {});
  EXPECT_EQ(automatic.layout.zero, 0);
  EXPECT_EQ(automatic.layout.shards, 0);
}

}  // namespace tutti
