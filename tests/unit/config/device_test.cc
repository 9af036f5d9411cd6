// How a job asks for a GPU: what `auto` becomes on machines with and without one, and every request
// that is refused.
#include <gtest/gtest.h>

#include <regex>

#include "base/error.h"
#include "config/job.h"
#include "config/model_rules.h"

namespace tutti {

namespace {

using Faults = std::vector<std::string>;
const Machine kCpu{
    .cores = 4,
    .path = CodePath::kAvx512,
    .no_gpu = "this host has no NVIDIA driver (no /dev/nvidiactl); run on a GPU host"};

Machine with_gpus(int count) {
  Machine machine{.cores = 4, .path = CodePath::kAvx512};
  machine.gpus.assign(static_cast<size_t>(count),
                      Gpu{"NVIDIA H200", int64_t{141} << 30, int64_t{140} << 30, 9, 0});
  return machine;
}

Job resolved(const std::vector<Setting>& settings, const Machine& machine) {
  Job job = load_job("gpt-kjv", settings);
  resolve(job, machine, {});
  return job;
}

Faults faults_of(const std::vector<Setting>& settings, const Machine& machine) {
  try {
    resolved(settings, machine);
  } catch (const ConfigError& error) {
    return error.faults();
  }
  return {};
}

}  // namespace

TEST(DeviceKey, AutoIsTheGpuWhereThereIsOne) {
  const Job cpu = resolved({}, kCpu), cuda = resolved({}, with_gpus(2));
  EXPECT_EQ(cpu.numerics.device, DeviceKind::kCpu);
  EXPECT_EQ(cpu.layout.transport, "shm");
  EXPECT_EQ(cuda.numerics.device, DeviceKind::kCuda);
  EXPECT_EQ(cuda.origin.at("numerics.device").text(), "resolved");
  EXPECT_EQ(cuda.layout.transport, "nccl");
  const Job stays = resolved({{"numerics.device", "cpu"}}, with_gpus(2));
  EXPECT_EQ(stays.numerics.device, DeviceKind::kCpu);
  EXPECT_EQ(stays.layout.ranks, 4);
}

TEST(DeviceKey, RanksAreOnePerGpuAndAtMostTheLanes) {
  EXPECT_EQ(resolved({}, with_gpus(1)).layout.ranks, 1);
  EXPECT_EQ(resolved({}, with_gpus(1)).layout.transport, "nccl");
  EXPECT_EQ(resolved({}, with_gpus(3)).layout.ranks, 3);
  EXPECT_EQ(resolved({}, with_gpus(64)).layout.ranks, 8);
  EXPECT_EQ(resolved({{"layout.ranks", "4"}}, with_gpus(1)).layout.ranks, 4)
      << "several ranks may share a GPU";
}

TEST(DeviceKey, WhatADeviceCanDoIsTaken) {
  for (const auto& settings : std::vector<std::vector<Setting>>{
           {{"numerics.device", "cuda"}},
           {{"numerics.precision", "bfloat16"}},
           {{"numerics.precision", "float16"},
            {"numerics.loss_scale", "1024"},
            {"numerics.scale_growth", "100"}},
           {{"layout.graph", "false"}, {"layout.prefetch", "false"}},
           {{"layout.graph", "true"}},
           {{"layout.partition", "hash"}, {"layout.ranks", "2"}},
           {{"layout.transport", "nccl"}, {"layout.ranks", "2"}},
           {{"layout.transport", "shm"}, {"layout.ranks", "1"}},
           {{"numerics.reduce", "ring"}, {"layout.ranks", "2"}},
       }) {
    EXPECT_EQ(faults_of(settings, with_gpus(2)), Faults{}) << settings[0].key;
  }
}

TEST(DeviceKey, CudaWithoutAGpuIsRefusedWithTheReasonAndTheWayOut) {
  EXPECT_EQ(faults_of({{"numerics.device", "cuda"}}, kCpu),
            Faults{"numerics.device = \"cuda\" but this host has no NVIDIA driver (no "
                   "/dev/nvidiactl); run on a GPU "
                   "host, or set numerics.device = \"cpu\""});
  EXPECT_EQ(
      faults_of({{"numerics.device", "cuda"}}, {4, CodePath::kAvx512}),
      Faults{
          "numerics.device = \"cuda\" but no GPU of this host is known; run on a GPU host, or set "
          "numerics.device = \"cpu\""});
}

TEST(DeviceKey, SixteenBitsOnACpuAreRefused) {
  for (const char* precision : {"bfloat16", "float16"}) {
    EXPECT_EQ(faults_of({{"numerics.precision", precision}}, kCpu),
              Faults{std::string("numerics.precision = \"") + precision +
                     "\" but numerics.device = \"cpu\", because this host has no NVIDIA driver (no "
                     "/dev/nvidiactl); "
                     "run on a GPU host, or set numerics.precision = \"float32\""});
    EXPECT_EQ(
        faults_of({{"numerics.precision", precision}, {"numerics.device", "cpu"}}, with_gpus(1)),
        Faults{std::string("numerics.precision = \"") + precision +
               "\" but numerics.device = \"cpu\": 16 bits are of a GPU alone; set "
               "numerics.precision = \"float32\""});
  }
}

/// The settings that a fault tells to make: every `key = value` after its last "set ".
std::vector<Setting> hint_of(const std::string& fault) {
  const std::string hint = fault.substr(fault.rfind("set "));
  const std::regex setting(R"(([a-z]+\.[a-z_0-9]+) = ("[^"]*"|[-.0-9a-z]+))");
  std::vector<Setting> settings;
  for (std::sregex_iterator it(hint.begin(), hint.end(), setting), end; it != end; ++it)
    settings.push_back({(*it)[1], (*it)[2]});
  return settings;
}

TEST(DeviceKey, WhoDoesWhatARefusalSaysIsNotRefusedAgain) {
  using Settings = std::vector<Setting>;
  const Setting none{"data.held_out", "0"}, cpu{"numerics.device", "cpu"};
  const auto refused = [](const std::string& name, const Settings& settings) {
    Job job = load_job(name, settings);
    try {
      resolve(job, kCpu, {});
    } catch (const ConfigError& error) {
      return error.faults();
    }
    return Faults{};
  };
  for (const auto& [name, settings] : std::vector<std::pair<std::string, Settings>>{
           {"gpt2-124m", {}},
           {"gpt2-124m", {{"layout.transport", "nccl"}}},
           {"gpt2-124m", {{"numerics.precision", "float16"}, {"numerics.loss_scale", "1024"}}},
           {"gpt2-124m", {{"numerics.precision", "float32"}}},
           {"gpt2-124m", {cpu, {"numerics.precision", "float16"}, {"numerics.scale_growth", "7"}}},
           {"gpt2-124m", {cpu}},
           {"gpt-kjv", {{"numerics.device", "cuda"}}},
           {"gpt-kjv", {{"numerics.precision", "bfloat16"}}},
           {"gpt-kjv", {none}},
           {"gpt-kjv", {none, {"train.eval_every", "0"}}},
       }) {
    const Faults faults = refused(name, settings);
    ASSERT_EQ(faults.size(), 1u) << name;
    Settings followed = settings;
    for (Setting& setting : hint_of(faults[0])) followed.push_back(std::move(setting));
    EXPECT_GT(followed.size(), settings.size()) << faults[0];
    EXPECT_EQ(refused(name, followed), Faults{}) << "who followed " << faults[0];
  }
  const Faults gpus_own = refused("gpt2-124m", {{"layout.graph", "false"}});
  EXPECT_TRUE(
      gpus_own.at(0).ends_with("or set numerics.device = \"cpu\" and numerics.precision = "
                               "\"float32\", and leave out layout.graph"))
      << gpus_own[0];
}

TEST(DeviceKey, TheLossScaleIsOfFloat16Alone) {
  EXPECT_EQ(faults_of({{"numerics.loss_scale", "1024"}}, kCpu),
            Faults{"numerics.loss_scale = 1024.0 but numerics.precision = \"float32\": only "
                   "float16 scales its loss"});
  EXPECT_EQ(faults_of({{"numerics.scale_growth", "10"}, {"numerics.precision", "bfloat16"}},
                      with_gpus(1)),
            Faults{"numerics.scale_growth = 10 but numerics.precision = \"bfloat16\": only float16 "
                   "scales its loss"});
}

TEST(DeviceKey, WorkersAndTransportMustFitTheDevice) {
  EXPECT_EQ(faults_of({{"layout.workers", "thread"}}, with_gpus(1)),
            Faults{"layout.workers = \"thread\" but numerics.device = \"cuda\": a device belongs "
                   "to a process; use "
                   "\"process\""});
  for (const char* transport : {"shm", "tcp"}) {
    EXPECT_EQ(faults_of({{"layout.transport", transport}, {"layout.ranks", "2"}}, with_gpus(1)),
              Faults{std::string("layout.transport = \"") + transport +
                     "\" but numerics.device = \"cuda\": gradients are in the GPUs' memory, which "
                     "only \"nccl\" "
                     "carries"});
  }
  EXPECT_EQ(faults_of({{"layout.transport", "nccl"}}, kCpu),
            Faults{"layout.transport = \"nccl\" but numerics.device = \"cpu\": it carries GPUs' "
                   "memory alone; use "
                   "\"shm\" or \"tcp\""});
}

TEST(DeviceKey, AGpusKeySetInACpusJobIsRefused) {
  EXPECT_EQ(
      faults_of({{"layout.graph", "true"}, {"layout.prefetch", "false"}}, kCpu),
      (Faults{
          "layout.graph = true but numerics.device = \"cpu\": it is of a GPU alone; leave it out",
          "layout.prefetch = false but numerics.device = \"cpu\": it is of a GPU alone; leave it "
          "out"}));
  Job file = parse_job("base = \"gpt-kjv\"\n[layout]\nprefetch = true\n", "my.toml", {});
  try {
    resolve(file, kCpu, {});
    ADD_FAILURE() << "resolved";
  } catch (const ConfigError& error) {
    EXPECT_EQ(
        error.faults(),
        Faults{"my.toml:3: layout.prefetch = true but numerics.device = \"cpu\": it is of a GPU "
               "alone; leave it out"});
  }
  Job program = load_job("gpt-kjv", {});
  program.layout.graph = false;
  EXPECT_THROW(resolve(program, kCpu, {}), ConfigError);
}

TEST(ForgetIdleKeys, ARunThatLeavesItsGpuKeepsNothingOfIt) {
  const std::string of_a_gpu = to_toml(resolved({{"numerics.precision", "float16"},
                                                 {"numerics.loss_scale", "1024"},
                                                 {"layout.graph", "false"}},
                                                with_gpus(1)));
  const auto goes_on = [&](const std::string& device) {
    Job job = parse_job(of_a_gpu, "job.toml",
                        {{"numerics.device", device},
                         {"numerics.precision", "float32"},
                         {"layout.transport", "auto"}});
    forget_idle_keys(job, kCpu);
    resolve(job, kCpu, {});
    return job;
  };
  for (const char* device : {"cpu", "auto"}) {
    const Job job = goes_on(device);
    EXPECT_EQ(job.numerics.device, DeviceKind::kCpu);
    EXPECT_TRUE(job.layout.graph);
    EXPECT_EQ(job.numerics.loss_scale, 0);
    EXPECT_EQ(job.origin.at("layout.graph").text(), "default");
  }
  Job stays = parse_job(of_a_gpu, "job.toml", {});
  forget_idle_keys(stays, with_gpus(1));
  EXPECT_FALSE(stays.layout.graph);
  EXPECT_EQ(stays.numerics.loss_scale, 1024);
}

TEST(ForgetIdleKeys, WhatWasSetIsStillRefused) {
  Job job = load_job("gpt-kjv", {{"numerics.device", "cpu"}, {"layout.prefetch", "false"}});
  forget_idle_keys(job, kCpu);
  EXPECT_THROW(resolve(job, kCpu, {}), ConfigError);
}

}  // namespace tutti
