// Runs that are saved on one layout and go on with another.
#pragma once

#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "support/command.h"

namespace tutti::testing_support {

/// "ranks=4 zero=3" over what a layout is without it, as --set arguments: nothing is left of the
/// layout before.
inline Arguments whole_layout(const std::string& text) {
  std::map<std::string, std::string> keys = {
      {"zero", "0"},         {"shards", "0"},    {"tensor", "1"},       {"pipeline", "1"},
      {"schedule", "1f1b"},  {"hosts", "1"},     {"transport", "auto"}, {"workers", "process"},
      {"recompute", "none"}, {"offload", "none"}};
  std::istringstream words(text);
  for (std::string word; words >> word;)
    keys[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  Arguments settings;
  for (const auto& [key, value] : keys) settings.push_back(fmt::format("layout.{}={}", key, value));
  return set(settings);
}

/// Every layout saves the same checkpoint, and each goes on with the three layouts after it in the
/// list to the state of a run that never stopped. Returns how many pairs there were.
inline int expect_every_layout_goes_on_with_others(const Arguments& job,
                                                   const std::vector<std::string>& layouts,
                                                   Seconds patience = Seconds(60)) {
  TempFolder folder;
  const auto trained = [&](const Arguments& arguments) {
    Command command(Arguments{"train"} + arguments);
    EXPECT_EQ(command.wait(patience), 0) << command.out() << command.err();
    return command.hash();
  };
  const std::string straight = folder / "straight";
  const std::string expected =
      trained(job + Arguments{"--out", straight} + whole_layout("ranks=1"));
  EXPECT_EQ(expected.size(), 64U);

  std::vector<std::string> saved;
  for (const std::string& layout : layouts) {
    saved.push_back(folder / fmt::format("saved {}", saved.size()));
    trained(job + Arguments{"--steps", "2", "--out", saved.back()} + whole_layout(layout));
    Command equal({"diff", saved.front(), saved.back()});
    EXPECT_EQ(equal.wait(patience), 0) << layout << ": " << equal.out();
  }
  int pairs = 0;
  for (size_t from = 0; from < layouts.size(); ++from)
    for (size_t next = 1; next <= 3; ++next) {
      const std::string& layout = layouts[(from + next) % layouts.size()];
      const std::string run = folder / fmt::format("pair {}", pairs++);
      std::filesystem::copy(
          saved[from], run,
          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
      EXPECT_EQ(trained(Arguments{"--resume", run} + whole_layout(layout)), expected)
          << layouts[from] << " -> " << layout;
    }
  return pairs;
}

}  // namespace tutti::testing_support
