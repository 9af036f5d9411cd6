// What the tests of checkpoints share: a folder of their own and a small state with storage.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "state/checkpoint.h"
#include "state/load_checkpoint.h"

namespace tutti {

/// A state of two parameters with moments; `scale` times 1000 floats in the larger one.
struct OwnedState {
  explicit OwnedState(int64_t step, float fill, int64_t scale = 1) {
    add("embed.token.weight", "parameter", {scale * 100, 10}, fill);
    add("embed.token.weight", "m", {scale * 100, 10}, fill + 1);
    add("head.bias", "parameter", {7}, fill + 2);
    add("head.bias", "m", {7}, fill + 3);
    state.counters = {step, step * 32, ""};
  }
  OwnedState(const OwnedState&) = delete;
  OwnedState& operator=(const OwnedState&) = delete;
  void add(const std::string& name, const std::string& slot, std::vector<int64_t> dims,
           float fill) {
    size_t size = 1;
    for (int64_t dim : dims) size *= static_cast<size_t>(dim);
    auto& values = storage.emplace_back(std::make_unique<std::vector<float>>(size));
    for (size_t i = 0; i < size; ++i) (*values)[i] = fill + 1.0f / static_cast<float>(i + 3);
    state.entries.push_back({name, slot, std::move(dims), *values});
  }
  std::vector<std::unique_ptr<std::vector<float>>> storage;
  State state;
};

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-state-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::set<std::string> names_in(const std::string& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.insert(entry.path().filename());
    return names;
  }
  static std::string load_fault(const std::string& checkpoint, State& state) {
    try {
      load_checkpoint(checkpoint, state);
    } catch (const Error& error) {
      return error.what();
    }
    return "no fault";
  }
  static std::string slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void spill(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  std::string folder_;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tutti
