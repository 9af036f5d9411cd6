// Runs of one job over layouts: what a run said and ended with, to be compared with those of one
// rank.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "support/command.h"

namespace tutti::testing_support {

/// Without what depends on the clock.
struct Outcome {
  std::string hash;   ///< of the state, the optimizer's included
  std::string order;  ///< of the data
  /// losses, norms and rates of the steps; held-out loss and metrics
  std::vector<nlohmann::json> records;
  bool operator==(const Outcome&) const = default;
  size_t count(const std::string& event) const {
    return static_cast<size_t>(
        std::count_if(records.begin(), records.end(),
                      [&](const nlohmann::json& record) { return record.at("event") == event; }));
  }
};
inline void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << "state " << outcome.hash << " order " << outcome.order;
  for (const auto& record : outcome.records) *out << "\n    " << record;
}

inline std::vector<nlohmann::json> records_of(const std::string& run) {
  std::vector<nlohmann::json> records;
  for (const std::string& line : lines_in(run + "/metrics.jsonl")) {
    auto& record = records.emplace_back(nlohmann::json::parse(line));
    for (const char* clocked : {"seconds", "tokens_per_second"}) record.erase(clocked);
  }
  return records;
}

/// "ranks=4 zero=3 numerics.order=micro" as --set arguments; a key without a section is one of the
/// layout's.
inline Arguments settings_of(const std::string& text) {
  Arguments settings;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    settings.push_back(
        word.substr(0, word.find('=')).find('.') == std::string::npos ? "layout." + word : word);
  return set(settings);
}

/// Trains into the folder, which must not be there yet.
inline Outcome train_into(const std::string& run, const Arguments& job) {
  Command command(Arguments{"train"} + job + Arguments{"--out", run});
  EXPECT_EQ(command.wait(), 0) << command.err();
  if (command.wait() != 0) return {};
  const auto end = nlohmann::json::parse(lines_in(run + "/events.jsonl").back());
  return {command.hash(), end.at("order"), records_of(run)};
}

/// Small jobs. Rows of data are drawn by key, so that a test needs no files.
inline constexpr const char* kSmallGpt = R"(
[model]
kind = "gpt"
layers = 3
width = 32
heads = 4
context = 16
vocab = 64
dropout = 0.1
[data]
kind = "walk"
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 2
steps = 10
lr = 1e-2
warmup = 2
weight_decay = 0.1
eval_every = 5
eval_batches = 1
)";
inline constexpr const char* kSmallMlp = R"(
[model]
kind = "mlp"
inputs = 8
hidden = [48, 32, 80, 16]
classes = 4
norm = "layer"
dropout = 0.1
init = "he-normal"
[data]
kind = "points"
[train]
lanes = 7
micro_batches = 1
micro_batch_size = 5
steps = 12
lr = 1e-2
eval_every = 6
eval_batches = 1
)";
inline constexpr const char* kSmallCnn = R"(
[model]
kind = "cnn"
image = [1, 8, 8]
channels = [4, 8]
classes = 4
norm = "batch"
init = "he-normal"
[data]
kind = "numpy"
scale = "standardise"
held_out = 0.2
[train]
lanes = 4
micro_batches = 2
micro_batch_size = 3
steps = 10
lr = 1e-2
eval_every = 5
eval_batches = 2
)";

}  // namespace tutti::testing_support
