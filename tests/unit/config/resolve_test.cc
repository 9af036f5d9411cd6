#include <gtest/gtest.h>

#include "base/error.h"
#include "base/processor.h"
#include "config/isa.h"
#include "config/job.h"
#include "config/job_parts.h"
#include "config/model_rules.h"

namespace tutti {

namespace {

using Faults = std::vector<std::string>;
const Machine kFour{4, CodePath::kAvx512};

Job resolved(const std::vector<Setting>& settings, const Machine& machine = kFour) {
  Job job = load_job("gpt-kjv", settings);
  resolve(job, machine, {});
  return job;
}

Faults faults_of(const std::vector<Setting>& settings, const Machine& machine = kFour) {
  try {
    resolved(std::move(settings), machine);
  } catch (const ConfigError& error) {
    return error.faults();
  }
  return {};
}

}  // namespace

TEST(Resolve, RanksAreOnePerCoreAndAtMostTheLanes) {
  EXPECT_EQ(resolved({}, {2, CodePath::kAvx512}).layout.ranks, 2);
  EXPECT_EQ(resolved({}, {64, CodePath::kAvx512}).layout.ranks, 8);
  EXPECT_EQ(resolved({}).origin.at("layout.ranks").text(), "resolved");
  const Job given = resolved({{"layout.ranks", "3"}});
  EXPECT_EQ(given.layout.ranks, 3);
  EXPECT_EQ(given.origin.at("layout.ranks").text(), "--set");
}

TEST(Resolve, AutoValuesFollowMachineAndWorkers) {
  const Job processes = resolved({});
  EXPECT_EQ(processes.layout.transport, "shm");
  EXPECT_EQ(processes.layout.fold, FoldKind::kLocal);
  EXPECT_EQ(processes.numerics.device, DeviceKind::kCpu);
  EXPECT_EQ(processes.origin.at("layout.transport").text(), "resolved");
  EXPECT_EQ(resolved({{"layout.workers", "thread"}}).layout.transport, "inproc");
}

TEST(Resolve, ASecondTimeChangesNothing) {
  const Job once = resolved({});
  Job twice = once;
  resolve(twice, {1, CodePath::kAvx512}, {});
  EXPECT_EQ(to_toml(once), to_toml(twice));
}

TEST(Resolve, InstructionsThatTheProcessorLacksAreRefused) {
  const Machine narrow{4, CodePath::kAvx2}, old{4, CodePath::kPortable};
  EXPECT_EQ(faults_of({}, old), Faults{}) << "portable kernels run anywhere";
  EXPECT_EQ(faults_of({{"layout.isa", "avx2"}}, narrow), Faults{});
  EXPECT_EQ(faults_of({{"layout.isa", "avx512"}}, narrow),
            Faults{"layout.isa = \"avx512\", but this processor has \"avx2\" and \"portable\""});
  EXPECT_EQ(faults_of({{"layout.isa", "avx2"}}, old),
            Faults{"layout.isa = \"avx2\", but this processor has \"portable\" only"});
}

TEST(Resolve, InstructionsAreOneForAllRanksOrOneForEach) {
  // Other hosts may have what this one lacks.
  EXPECT_EQ(faults_of({{"layout.isa", "avx512,portable,avx2,auto"}}, {4, CodePath::kPortable}),
            Faults{});
  EXPECT_EQ(faults_of({{"layout.isa", "avx512,avx2"}}),
            Faults{"layout.isa names 2 ranks, but layout.ranks = 4"});
  EXPECT_EQ(faults_of({{"layout.isa", "avx512,sse"}}).size(), 1u);
  EXPECT_EQ(path_of(resolved({{"layout.isa", "auto,portable"}, {"layout.ranks", "2"}}).layout, 0),
            fastest_path());
}

TEST(Resolve, EveryFaultOfTheWholeIsListedAtOnce) {
  EXPECT_EQ(faults_of({{"layout.ranks", "9"},
                       {"layout.hosts", "10"},
                       {"model.norm", "batch"},
                       {"layout.transport", "inproc"},
                       {"data.held_out", "0"}}),
            (Faults{
                "model.norm = \"batch\" but model.kind = \"gpt\": it takes \"layer\" or \"rms\"",
                "data.held_out = 0 but train.eval_batches = 4: nothing is kept to evaluate on; set "
                "train.eval_batches = 0 "
                "and train.eval_every = 0 for no evaluation",
                "layout.ranks = 9 but train.lanes = 8: a rank owns at least one lane; ask for at "
                "most 8 ranks, or for more "
                "lanes, which is another job",
                "layout.hosts = 10 but layout.ranks = 9: a host has at least one rank",
                "layout.transport = \"inproc\" but layout.workers = \"process\": inproc reaches "
                "only threads of one "
                "process; use \"shm\" or \"tcp\"",
            }));
}

TEST(Resolve, HeldOutIsAFractionOrAWholeNumberOfRecords) {
  for (const char* value : {"0.99", "1", "1.0", "4", "1000"})
    EXPECT_EQ(faults_of({{"data.held_out", value}}), Faults{});
  EXPECT_EQ(faults_of({{"data.held_out", "1.5"}}),
            Faults{"data.held_out = 1.5: below 1 it is a fraction of the records, from 1 on their "
                   "number, which is whole"});
}

TEST(Resolve, AFaultNamesTheLineThatTheValueCameFrom) {
  Job job = parse_job("base = \"gpt-kjv\"\n[layout]\nranks = 9\n", "my.toml", {});
  try {
    resolve(job, kFour, {});
    ADD_FAILURE() << "resolved";
  } catch (const ConfigError& error) {
    EXPECT_EQ(
        std::string(error.what()).rfind("my.toml:3: layout.ranks = 9 but train.lanes = 8: ", 0), 0u)
        << error.what();
  }
}

TEST(Resolve, ValuesThatContradictEachOtherAreRefused) {
  for (const auto& settings : std::vector<std::vector<Setting>>{
           {{"layout.transport", "shm"}, {"layout.workers", "thread"}},
           {{"data.kind", "points"}},
           {{"model.vocab", "255"}},
           {{"data.path", "\"\""}},
           {{"train.eval_batches", "0"}},
           {{"train.momentum", "0.9"}},
           {{"train.optimizer", "sgd"}, {"train.nesterov", "true"}},
           {{"train.prompt", "\"\""}},
           {{"train.steps", "1000000000000"}, {"train.micro_batch_size", "1048576"}},
           {{"numerics.reduce", "ring"}, {"layout.fold", "root"}},
           {{"layout.address", "\"\""}},
           {{"model.norm", "batch"}},
           {{"loss.kind", "mse"}},
           {{"loss.kind", "distill"}},
           {{"loss.teacher", "runs/x"}},
           {{"loss.class_weights", "[1, 2]"}},
           {{"data.folds", "5"}, {"data.fold", "5"}},
           {{"data.resample", "classes"}},
           {{"data.columns", "[\"a: number\"]"}},
           {{"augment.flip", "0.5"}},
           {{"train.groups", "[\"*.bias decay=0\"]"}},
           {{"train.schedule", "plateau"}, {"train.eval_every", "0"}},
           {{"train.early_stop", "2"}, {"train.eval_every", "0"}},
       }) {
    EXPECT_EQ(faults_of(settings).size(), 1u) << settings[0].key;
  }
  EXPECT_EQ(faults_of({{"model.kind", "mlp"}}).size(), 3u);  // tied weights, data and sample
}

TEST(Resolve, OnlyTablesHaveAColumnToResampleBy) {
  const auto tables = names_where<DataPart>(&DataPart::table);
  for (const std::string kind : {"idx", "numpy", "images"}) {
    Job job = parse_job("[model]\nkind = \"mlp\"\ninputs = 784\n[data]\nkind = \"" + kind +
                            "\"\nresample = \"column\"\n",
                        "my.toml", {});
    try {
      resolve(job, kFour, {});
      ADD_FAILURE() << "resolved " << kind;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.faults(),
                Faults{"my.toml:6: data.resample = \"column\" but data.kind = \"" + kind +
                       "\": only " + quoted_list(tables, "and") + " have columns"});
    }
  }
  EXPECT_EQ(faults_of({{"data.resample", "column"}}).size(), 1u);
}

TEST(Resolve, ValuesSetByAProgramAreCheckedToo) {
  Job job = load_job("gpt-kjv", {});
  job.train.lr = -1;
  job.layout.zero = 4;
  job.layout.tensor = 3;
  try {
    resolve(job, kFour, {});
    ADD_FAILURE() << "resolved";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.faults(),
              (Faults{"train.lr = -1.0 is out of range: it must be from 0 to 1000000",
                      "layout.zero = 4 is out of range: it must be from 0 to 3",
                      "layout.tensor = 3 but train.tensor_slices = 1: a rank owns at least one "
                      "column; ask for at most 1, or for more columns, which is another job"}));
  }
}

TEST(Resolve, HeadsThatAProgramSetToNoneAreAFaultAndNothingElse) {
  Job job = load_job("gpt-kjv", {});
  job.model.heads = 0;
  job.model.positions = Positions::kRotary;
  try {
    resolve(job, kFour, {});
    ADD_FAILURE() << "resolved";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.faults(),
              Faults{"model.heads = 0 is out of range: it must be from 1 to 1048576"});
  }
}

TEST(Resolve, ASampleOfATokenFilesModelIsRefused) {
  EXPECT_EQ(faults_of({{"data.kind", "tokens"}, {"data.path", "a.tok"}}),
            Faults{"train.sample_bytes = 400 but data.kind = \"tokens\": what text they stand for "
                   "is not known"});
}

TEST(Resolve, ASampleOfAModelInColumnsIsRefusedWhereSomebodyAskedForIt) {
  EXPECT_EQ(faults_of({{"train.tensor_slices", "2"}}), Faults{}) << "the built-in job has a sample";
  const Faults refused{
      "train.sample_bytes = 9 but train.tensor_slices = 2: a model in columns writes no text"};
  EXPECT_EQ(faults_of({{"train.tensor_slices", "2"}, {"train.sample_bytes", "9"}}), refused);

  // A run's own job.toml says all keys, those of its built-in job too.
  Job job = parse_job(to_toml(load_job("gpt-kjv", {{"train.tensor_slices", "2"}})), "job.toml", {});
  forget_idle_keys(job, kFour);
  EXPECT_NO_THROW(resolve(job, kFour, {}));
  EXPECT_EQ(job.train.sample_bytes, 400);
}

TEST(Resolve, ASampleOfAProgramsOwnModelIsRefusedWhereSomebodyAskedForIt) {
  EXPECT_EQ(faults_of({{"model.kind", "custom"}}), Faults{});
  EXPECT_EQ(faults_of({{"model.kind", "custom"}, {"train.sample_bytes", "9"}}),
            Faults{"train.sample_bytes = 9 but model.kind = \"custom\": it writes no text"});
}

TEST(Machine, ThisOneHasACoreAndACodePath) {
  const Machine machine = this_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_TRUE(can_run(machine.path));
}

}  // namespace tutti
