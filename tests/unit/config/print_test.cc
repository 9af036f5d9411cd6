#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "config/job.h"
#include "config/model_rules.h"
#include "config/schema.h"

namespace tutti {

namespace {

void expect_same(const Job& a, const Job& b) {
  EXPECT_EQ(a.name, b.name);
  for (const auto& key : keys()) EXPECT_EQ(key.get(a), key.get(b)) << key.full_name();
}

/// A value that the key's limits allow, at random.
Value random_value(const Key& key, std::mt19937& random) {
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const double low = std::max(key.limits.low, -1e9), high = std::min(key.limits.high, 1e9);
  switch (key.type()) {
    case ValueType::kInteger:
      return static_cast<int64_t>(between(low, high));
    case ValueType::kNumber:
      return std::min(
          high,
          std::nextafter(low + between(0, 1) * std::pow(10, between(-12, 0)) * (high - low), low));
    case ValueType::kBoolean:
      return random() % 2 == 0;
    case ValueType::kIntegers: {
      std::vector<int64_t> values(random() % 4);
      for (auto& value : values) value = static_cast<int64_t>(between(low, high));
      return values;
    }
    case ValueType::kNumbers: {
      std::vector<double> values(random() % 4);
      for (auto& value : values) value = between(low, high);
      return values;
    }
    case ValueType::kStrings: {
      std::vector<std::string> values(random() % 4);
      for (auto& value : values) value = random() % 2 == 0 ? "a: \"b\"" : "";
      return values;
    }
    case ValueType::kString:
      break;
  }
  if (!key.allowed.empty()) return key.allowed[random() % key.allowed.size()];
  const std::vector<std::string> letters = {"a", "\"", "\\", "\n", "\t", "\x01", "\x7f",
                                            "ü", "#",  "=",  "'",  " ",  "\r"};
  std::string text;
  for (unsigned n = random() % 12; n > 0; --n) text += letters[random() % letters.size()];
  return text;
}

}  // namespace

TEST(ToToml, ParsesBackToTheSameJobForEveryBuiltIn) {
  for (const auto& [name, description] : builtin_jobs()) {
    Job job = load_job(name, {});
    expect_same(parse_job(to_toml(job), "job.toml", {}), job);
    Machine machine{4, CodePath::kAvx512};
    if (job.numerics.device == DeviceKind::kCuda) machine.gpus.emplace_back();
    resolve(job, machine, {});
    expect_same(parse_job(to_toml(job), "job.toml", {}), job);
    expect_same(parse_job(explain(job), "job.toml", {}), job);
  }
}

TEST(ToToml, ParsesBackToTheSameJobForRandomValues) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 100; ++i) {
    Job job = load_job("gpt-kjv", {});
    for (const auto& key : keys()) key.set(job, random_value(key, random));
    expect_same(parse_job(to_toml(job), "job.toml", {}), job);
    if (HasFailure()) return;
  }
}

TEST(Explain, SaysWhereEachValueCameFromInColumns) {
  const Job job = parse_job("base = \"gpt-kjv\"\n[data]\npath = \"x\"\n", "my.toml",
                            {{"data.held_out", "0.25"}});
  const std::string text = explain(job);
  for (const char* line :
       {"\n[data]  # what it is trained on\n",
        "\nkind             = \"text\"   # built-in gpt-kjv\n",
        "\npath             = \"x\"      # my.toml:3\n", "\nheld_out         = 0.25     # --set\n",
        "\nlabels           = \"\"       # default\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(Differences, IgnoreTheLayoutAndTheOrigin) {
  const Job a = load_job("gpt-kjv", {});
  const Job b = load_job(
      "gpt-kjv", {{"layout.ranks", "3"}, {"layout.workers", "thread"}, {"train.steps", "400"}});
  EXPECT_EQ(job_differences(a, b), std::vector<std::string>{});
}

TEST(Differences, NameEveryKeyOfTheJobProper) {
  const Job a = load_job("gpt-kjv", {});
  const Job b = load_job("gpt-kjv",
                         {{"train.seed", "3"}, {"numerics.reduce", "ring"}, {"layout.ranks", "3"}});
  EXPECT_EQ(job_differences(a, b),
            (std::vector<std::string>{"train.seed is 1, not 3",
                                      "numerics.reduce is \"exact\", not \"ring\""}));
}

TEST(Differences, TheDeviceAndThePrecisionMayChangeAndAreNamed) {
  const Job a = load_job("gpt-kjv", {{"numerics.device", "cpu"}});
  const Job b = load_job("gpt-kjv", {{"numerics.device", "cuda"},
                                     {"numerics.precision", "float16"},
                                     {"numerics.loss_scale", "1024"},
                                     {"layout.graph", "false"}});
  EXPECT_EQ(job_differences(a, b), std::vector<std::string>{});
  EXPECT_EQ(device_differences(a, b),
            (std::vector<std::string>{"numerics.device: cpu -> cuda",
                                      "numerics.precision: float32 -> float16",
                                      "numerics.loss_scale: 0.0 -> 1024.0"}));
  EXPECT_EQ(device_differences(b, b), std::vector<std::string>{});
}

TEST(Differences, TheScaleOfARunThatStaysInFloat16IsTheJobs) {
  const Job a = load_job("gpt-kjv", {{"numerics.precision", "float16"}});
  const Job b =
      load_job("gpt-kjv", {{"numerics.precision", "float16"}, {"numerics.scale_growth", "10"}});
  EXPECT_EQ(job_differences(a, b),
            std::vector<std::string>{"numerics.scale_growth is 2000, not 10"});
  EXPECT_EQ(device_differences(a, b), std::vector<std::string>{});
}

TEST(ToToml, ACpusJobLeavesOutWhatIsAGpus) {
  Job job = load_job("gpt-kjv", {});
  EXPECT_NE(to_toml(job).find("\ngraph = true\n"), std::string::npos);
  resolve(job, {4, CodePath::kAvx512}, {});
  for (const std::string& text : {to_toml(job), explain(job)}) {
    EXPECT_EQ(text.find("\ngraph"), std::string::npos) << text;
    EXPECT_EQ(text.find("\nprefetch"), std::string::npos) << text;
    Job again = parse_job(text, "job.toml", {});
    resolve(again, {4, CodePath::kAvx512}, {});
  }
}

TEST(Reference, DocsJobMdIsFresh) {
  const auto root = std::filesystem::path(__FILE__).parent_path() / "../../..";
  std::ifstream file(root / "docs/job.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == job_reference()) << "docs/job.md is stale; refresh it: ./tutti docs";
}

TEST(Reference, HasARowForEveryKey) {
  const std::string reference = job_reference();
  for (const auto& key : keys()) {
    EXPECT_NE(reference.find("\n| `" + key.name + "` | "), std::string::npos) << key.full_name();
    EXPECT_FALSE(key.help.empty()) << key.full_name();
  }
}

TEST(Reference, SaysNothingOfWhatIsNotThereYet) {
  const std::string reference = job_reference(), explained = explain(load_job("gpt-kjv", {}));
  for (const char* word : {"float8", "ucx", "mpi", "codec", "`threads`", "elastic", "[ps]"}) {
    EXPECT_EQ(reference.find(word), std::string::npos) << word;
    EXPECT_EQ(explained.find(word), std::string::npos) << word;
  }
}

TEST(Reference, AnAutomaticKeyIsAnIntegerOrAuto) {
  EXPECT_NE(
      job_reference().find("\n| `zero` | integer or `auto` | `\"auto\"` | `auto`, from 0 to 3 | "),
      std::string::npos);
}

}  // namespace tutti
