#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "config/builtin.h"
#include "config/job.h"
#include "config/model_rules.h"
#include "config/nearest.h"
#include "config/not_yet.h"
#include "config/schema.h"

namespace tutti {

namespace {

using Faults = std::vector<std::string>;

Faults faults_of(const std::string& text, const std::vector<Setting>& settings = {}) {
  try {
    parse_job(text, "my.toml", settings);
  } catch (const ConfigError& error) {
    return error.faults();
  }
  return {};
}

std::string names_of_jobs() {
  std::string names;
  for (const auto& [name, description] : builtin_jobs())
    names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace

TEST(Parse, EmptyFileIsTheJobOfAllDefaults) {
  const Job job = parse_job("", "dir/empty.toml", {});
  EXPECT_EQ(job.name, "empty");
  EXPECT_EQ(job.origin.size(), keys().size());
  for (const auto& key : keys()) {
    EXPECT_EQ(key.get(job), key.fallback) << key.full_name();
    EXPECT_EQ(job.origin.at(key.full_name()).text(), "default");
  }
}

TEST(Parse, DefaultsAreValid) {
  for (const auto& key : keys()) EXPECT_EQ(fault_of(key, key.fallback), "");
}

TEST(Parse, ValuesReachTheirFields) {
  const Job job = parse_job(R"(
name = "mine"
[model]
kind = "mlp"
hidden = [3, 4]
[train]
seed = 9223372036854775807
lr = 1
nesterov = true
[layout]
timeout = 2.5
)",
                            "my.toml", {});
  EXPECT_EQ(job.name, "mine");
  EXPECT_EQ(job.model.kind, "mlp");
  EXPECT_EQ(job.model.hidden, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(job.train.seed, 9223372036854775807u);
  EXPECT_EQ(job.train.lr, 1.0);
  EXPECT_TRUE(job.train.nesterov);
  EXPECT_EQ(job.layout.timeout, 2.5);
}

TEST(Parse, OriginSaysDefaultBuiltInLineOrSet) {
  const Job job =
      parse_job("base = \"gpt-kjv\"\n\n[train]\nsteps = 7\n", "my.toml", {{"train.seed", "3"}});
  EXPECT_EQ(job.origin.at("train.steps").text(), "my.toml:4");
  EXPECT_EQ(job.origin.at("train.seed").text(), "--set");
  EXPECT_EQ(job.origin.at("train.lanes").text(), "built-in gpt-kjv");
  EXPECT_EQ(job.origin.at("layout.timeout").text(), "default");
  EXPECT_EQ(job.name, "my");
}

TEST(Parse, FileOverridesItsBaseAndSettingsOverrideBoth) {
  const Job job = parse_job("base = \"gpt-bench\"\n[model]\nlayers = 2\nwidth = 64\n", "my.toml",
                            {{"model.width", "32"}});
  EXPECT_EQ(job.model.layers, 2);
  EXPECT_EQ(job.model.width, 32);
  EXPECT_EQ(job.model.context, 256);
}

TEST(Parse, EveryFaultIsListedInTheOrderOfLines) {
  const std::string jobs = names_of_jobs();
  EXPECT_EQ(
      faults_of(R"(base = "gpt-kjw"
stepz = 4
[trian]
lanes = 3
more = 4
[train]
step = 5
seed = "x"
lr = nan
lanes = 0
[model]
steps = 4
kind = "gtp"
dropout = 1
[layout]
kind = "ps"
)",
                {{"train.lanez", "3"}, {"train.warmup", "1.5"}}),
      (Faults{
          "my.toml:1: base = \"gpt-kjw\" is not a built-in job; did you mean gpt-kjv?; built-in "
          "jobs: " +
              jobs,
          "my.toml:2: unknown key stepz; did you mean train.steps?",
          "my.toml:3: unknown section [trian]; did you mean [train]?",
          "my.toml:7: unknown key train.step; did you mean train.steps?",
          "my.toml:8: train.seed must be an integer, not \"x\"",
          "my.toml:9: train.lr = nan is out of range: it must be from 0 to 1000000",
          "my.toml:10: train.lanes = 0 is out of range: it must be from 1 to 65536",
          "my.toml:12: unknown key model.steps; did you mean train.steps?",
          "my.toml:13: model.kind = \"gtp\" is not one of \"gpt\", \"mlp\", \"cnn\", "
          "\"wide-deep\", "
          "\"autoencoder\", \"script\", \"custom\"; did you mean \"gpt\"?",
          "my.toml:14: model.dropout = 1.0 is out of range: it must be at least 0 and below 1",
          "my.toml:16: layout.kind = \"ps\" is not there yet; the nearest that is: \"collective\"",
          "--set train.lanez=3: unknown key train.lanez; did you mean train.lanes?",
          "--set train.warmup=1.5: train.warmup must be an integer, not 1.5",
      }));
}

TEST(Parse, WhatIsNotTomlIsRefusedWithItsLine) {
  const Faults faults = faults_of("[train]\nsteps = \n");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].rfind("my.toml:2: not TOML: ", 0), 0u) << faults[0];
}

TEST(Parse, AHeaderThatStartsWithNoKeyIsRefusedWithItsLine) {
  for (const std::string header : {"[=]", "[[[train]]]", "[[=", "[#]", "[.a]", "[,"}) {
    EXPECT_EQ(faults_of("[train]\n" + header + "\nsteps = 1\n"),
              Faults{"my.toml:2: not TOML: a section is written [section]"});
  }
}

TEST(Parse, AKeyGivenTwiceIsRefused) {
  EXPECT_EQ(faults_of("[train]\nsteps = 1\nsteps = 2\n").size(), 1u);
}

TEST(Parse, SectionsAndKeysOfTheWrongShapeAreRefused) {
  EXPECT_EQ(faults_of("train = 3\n"),
            Faults{"my.toml:1: train is a section: write [train] and its keys below"});
  EXPECT_EQ(faults_of("[[train]]\nsteps = 3\n"),
            Faults{"my.toml:1: train is a section: write [train] and its keys below"});
  EXPECT_EQ(faults_of("[train.steps]\n"),
            Faults{"my.toml:1: train.steps must be an integer, not a table"});
  EXPECT_EQ(
      faults_of("[model]\nhidden = [1, \"a\"]\n"),
      Faults{"my.toml:2: model.hidden must be an array of integers, not an array of other values"});
  EXPECT_EQ(
      faults_of("[model]\nhidden = [4, 0]\n"),
      Faults{"my.toml:2: model.hidden = [4, 0] is out of range: each must be from 1 to 1048576"});
  EXPECT_EQ(faults_of("[data]\npath = 2024-01-01\n"),
            Faults{"my.toml:2: data.path must be a string, not a date or time"});
  EXPECT_EQ(faults_of("base = 3\n"), Faults{"my.toml:1: base must be a string"});
  EXPECT_EQ(faults_of("[nothing]\n"), Faults{"my.toml:1: unknown section [nothing]"});
}

TEST(Parse, WhatIsNotThereYetIsRefusedWithTheNearestThatIs) {
  const std::string equal = "ranks are equal and meet in collectives; leave it out";
  for (const auto& [key, value, instead] : std::vector<std::array<std::string, 3>>{
           {"numerics.precision", "\"float8\"", "the nearest that is: \"bfloat16\""},
           {"numerics.codec", "\"int8\"", "gradients travel as float32: \"none\""},
           {"numerics.codec_lanes", "1", "gradients travel as float32; leave it out"},
           {"numerics.threads", "2", "a rank computes on 1 thread; more ranks use more cores"},
           {"layout.kind", "\"ps\"", "the nearest that is: \"collective\""},
           {"layout.transport", "\"ucx\"", "the nearest that is: \"tcp\""},
           {"layout.transport", "\"mpi\"", "the nearest that is: \"tcp\""},
           {"elastic.enabled", "true", "a run that lost a rank goes on with --resume"},
           {"elastic.liveness", "3", "layout.timeout says how long a silent rank is waited for"},
           {"elastic.audit", "0", "`tutti verify` compares the bits of layouts; leave it out"},
           {"ps.servers", "2", equal},
           {"ps.workers", "3", equal},
           {"ps.mode", "\"async\"", equal},
           {"ps.staleness", "1", equal},
           {"ps.replicas", "2", equal},
       }) {
    EXPECT_EQ(faults_of("", {{key, value}}),
              Faults{"--set " + key + "=" + value + ": " + key + " = " + value +
                     " is not there yet; " + instead});
    const size_t dot = key.find('.');
    EXPECT_EQ(faults_of("[" + key.substr(0, dot) + "]\n" + key.substr(dot + 1) + " = " + value),
              Faults{"my.toml:2: " + key + " = " + value + " is not there yet; " + instead});
  }
  EXPECT_EQ(faults_of("[ps]\nserver = 2\n"), Faults{"my.toml:2: unknown key ps.server"});
}

TEST(Parse, AnEarlierBuildsJobWithKeysThatDidNothingStillLoads) {
  EXPECT_EQ(faults_of("[numerics]\nthreads = 1\ncodec = \"none\"\n"
                      "[layout]\nkind = \"collective\"\n[elastic]\nenabled = false\n"
                      "[ps]\nservers = 1\nworkers = 2\nmode = \"sync\"\nstaleness = 0\n"
                      "replicas = 1\n"),
            Faults{});
}

TEST(Settings, TakeTomlAndBareWords) {
  const Job job = parse_job("", "x",
                            {{"model.kind", "mlp"},
                             {"model.hidden", "[1, 2]"},
                             {"data.path", "/some/where.txt"},
                             {"train.prompt", "In the beginning"},
                             {"train.lr", "1e-4"},
                             {"layout.overlap", "false"},
                             {"layout.workers", "\"thread\""},
                             {"train.steps", "1"},
                             {"train.steps", "2"}});
  EXPECT_EQ(job.model.kind, "mlp");
  EXPECT_EQ(job.model.hidden, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(job.data.path, "/some/where.txt");
  EXPECT_EQ(job.train.prompt, "In the beginning");
  EXPECT_EQ(job.train.lr, 1e-4);
  EXPECT_FALSE(job.layout.overlap);
  EXPECT_EQ(job.layout.workers, Workers::kThread);
  EXPECT_EQ(job.train.steps, 2);
}

TEST(Settings, FaultsRepeatWhatWasTyped) {
  EXPECT_EQ(faults_of("", {{"steps", "3"}}),
            Faults{"--set steps=3: unknown key steps; did you mean train.steps?"});
  EXPECT_EQ(faults_of("", {{"trian.kind", "3"}}),
            Faults{"--set trian.kind=3: unknown key trian.kind; did you mean "
                   "model.kind?"});
  EXPECT_EQ(faults_of("", {{"trian.seed", "3"}}),
            Faults{"--set trian.seed=3: unknown key trian.seed; did you mean "
                   "train.seed?"});
  EXPECT_EQ(faults_of("", {{"", "3"}}), Faults{"--set =3: unknown key "});
  EXPECT_EQ(faults_of("", {{"train.steps", ""}}),
            Faults{"--set train.steps=: the value is not TOML"});
  EXPECT_EQ(faults_of("", {{"data.path", "\"open"}}),
            Faults{"--set data.path=\"open: the value is not TOML"});
  EXPECT_EQ(faults_of("", {{"data.path", "\xff"}}),
            Faults{"--set data.path=\xff: the value is not TOML"});
  EXPECT_EQ(faults_of("", {{"train.steps", "1\nother = 2"}}).size(), 1u);
}

TEST(Settings, NumbersThatNoComputerHoldsAreOutOfRange) {
  const std::string many = "99999999999999999999999";
  const std::string seed = "--set train.seed=", steps = "--set train.steps=";
  EXPECT_EQ(faults_of("", {{"train.seed", many}}),
            Faults{seed + many + ": train.seed = " + many +
                   " is out of range: it must be at least 0 and below 2^63"});
  EXPECT_EQ(faults_of("", {{"train.steps", "-" + many}}),
            Faults{steps + "-" + many + ": train.steps = -" + many +
                   " is out of range: it must be from 1 to 1e12"});
  for (const Setting& setting : std::vector<Setting>{{"train.seed", "-1"},
                                                     {"train.seed", "9223372036854775808"},
                                                     {"train.seed", "1.5"},
                                                     {"train.seed", "nan"},
                                                     {"train.lr", "nan"},
                                                     {"train.lr", "-inf"},
                                                     {"train.lr", "1e999"},
                                                     {"layout.timeout", "nan"},
                                                     {"loss.class_weights", "[1, nan]"},
                                                     {"model.hidden", "[" + many + "]"}})
    EXPECT_EQ(faults_of("", {setting}).size(), 1u) << setting.key << "=" << setting.value;
}

TEST(BuiltIn, EveryOneLoadsResolvesAndHasADescription) {
  ASSERT_GE(builtin_jobs().size(), 3u);
  for (const auto& [name, description] : builtin_jobs()) {
    EXPECT_GT(description.size(), 20u) << name;
    EXPECT_EQ(description.find('#'), std::string::npos) << name;
    Job job = load_job(name, {});
    EXPECT_EQ(job.name, name);
    Machine machine{4, CodePath::kAvx512};
    if (job.numerics.device == DeviceKind::kCuda) machine.gpus.emplace_back();
    resolve(job, machine, {});
  }
}

TEST(BuiltIn, GptKjvHasTheSizesThatTheReadmePromises) {
  const Job job = load_job("gpt-kjv", {});
  EXPECT_EQ(job.model.layers, 4);
  EXPECT_EQ(job.model.width, 192);
  EXPECT_EQ(job.model.context, 128);
  EXPECT_EQ(job.train.lanes * job.train.micro_batches * job.train.micro_batch_size, 32);
}

TEST(Load, ReadsAFileAndNamesThePathInFaults) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("tutti_config_" + std::to_string(getpid()) + ".toml");
  std::ofstream(path) << "base = \"mlp-points\"\n[train]\nsteps = 3\n";
  EXPECT_EQ(load_job(path.string(), {}).train.steps, 3);
  std::ofstream(path) << "[train]\nstep = 3\n";
  try {
    load_job(path.string(), {});
    ADD_FAILURE() << "loaded";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(),
              path.string() + ":2: unknown key train.step; did you mean train.steps?");
  }
  std::filesystem::remove(path);
}

TEST(Load, AnUnknownNameSuggestsTheNearestBuiltIn) {
  try {
    load_job("gtp-kjv", {});
    ADD_FAILURE() << "loaded";
  } catch (const ConfigError& error) {
    EXPECT_EQ(
        error.what(),
        "gtp-kjv is neither a built-in job nor a file; did you mean gpt-kjv?; built-in jobs: " +
            names_of_jobs());
  }
  EXPECT_THROW(load_job("/", {}), ConfigError);
  EXPECT_THROW(load_job("/dev/zero", {}), ConfigError);
}

TEST(Parse, DamagedFilesGiveAJobOrFaultsAndNothingElse) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string letters = "[]=\"'\n.#{}\\x1e\xff-";
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string text(builtin_files()[i % builtin_files().size()].text);
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      text.replace(random() % text.size(), random() % 3, 1, letters[random() % letters.size()]);
    }
    try {
      parse_job(text, "damaged.toml", {});
    } catch (const ConfigError& error) {
      ++refused;
      for (const auto& fault : error.faults())
        EXPECT_EQ(fault.rfind("damaged.toml:", 0), 0u) << fault;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(Nearest, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("trian", "train"), 1);
  EXPECT_EQ(nearest("schedul", {"steps", "schedule"}), "schedule");
  EXPECT_EQ(nearest("zzz", {"steps", "schedule"}), "");
}

TEST(Parse, WhatIsNotThereYetIsNeitherAKeyNorAValue) {
  for (const LaterKey& later : later_keys())
    EXPECT_EQ(find_key(later.section, later.name), nullptr) << later.section << '.' << later.name;
  for (const LaterValue& later : later_values()) {
    const Key* key = find_key(later.section, later.name);
    ASSERT_NE(key, nullptr) << later.section << '.' << later.name;
    EXPECT_EQ(std::count(key->allowed.begin(), key->allowed.end(), later.value), 0) << later.value;
  }
}

TEST(Parse, AKeyThatHasMovedIsReadWhereItIsNowWithANote) {
  const Job file = parse_job("base = \"mlp-points\"\n[numerics]\nisa = \"avx2\"\n", "old.toml", {});
  EXPECT_EQ(file.layout.isa, "avx2");
  EXPECT_EQ(file.notes, std::vector<std::string>{"old.toml:3: numerics.isa is layout.isa now: it "
                                                 "changes the speed, not the result"});
  const Job set = load_job("mlp-points", {{"numerics.isa", "portable"}});
  EXPECT_EQ(set.layout.isa, "portable");
  EXPECT_EQ(set.notes.size(), 1u);
  EXPECT_TRUE(load_job("mlp-points", {{"layout.isa", "portable"}}).notes.empty());
}

}  // namespace tutti
