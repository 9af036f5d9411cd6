#include "state/checkpoint.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "fixture.h"
#include "state/load_checkpoint.h"
#include "state/manifest.h"
#include "state/safetensors.h"

namespace tutti {
namespace {

TEST_F(CheckpointTest, ARoundTripKeepsEveryBitTheCountersAndTheJob) {
  OwnedState saved(400, 0.5f);
  saved.state.counters.schedule = "{\"best\": 1}";
  (*saved.storage[0])[0] = -0.0f;
  (*saved.storage[0])[1] = std::nanf("77");
  const std::string path =
      save_checkpoint(folder_ + "/checkpoints", saved.state, "[train]\nsteps = 400\n");
  EXPECT_EQ(path, folder_ + "/checkpoints/step-00000400");

  OwnedState loaded(0, 9);
  load_checkpoint(path, loaded.state);
  for (size_t i = 0; i < saved.storage.size(); ++i) {
    const auto &a = *saved.storage[i], &b = *loaded.storage[i];
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
        << saved.state.entries[i].name;
  }
  EXPECT_EQ(loaded.state.counters.step, 400);
  EXPECT_EQ(loaded.state.counters.cursor, 400 * 32);
  EXPECT_EQ(loaded.state.counters.schedule, "{\"best\": 1}");
  EXPECT_EQ(state_hash(loaded.state), state_hash(saved.state));
  EXPECT_EQ(read_manifest(path).job_toml, "[train]\nsteps = 400\n");
  EXPECT_EQ(read_manifest(path).state_sha256, state_hash(saved.state));
}

TEST_F(CheckpointTest, TensorsAreFoundByNameWhateverTheirOrder) {
  OwnedState saved(1, 0.5f), loaded(0, 9);
  std::swap(saved.state.entries[0], saved.state.entries[2]);
  const std::string path = save_checkpoint(folder_, saved.state, "");
  // another order is another state
  EXPECT_TRUE(contains(load_fault(path, loaded.state), "the state's hash"));
  std::swap(loaded.state.entries[0], loaded.state.entries[2]);
  EXPECT_EQ(load_fault(path, loaded.state), "no fault");
  for (size_t i = 0; i < saved.storage.size(); ++i)
    EXPECT_EQ(*loaded.storage[i], *saved.storage[i]) << i;
}

TEST_F(CheckpointTest, TheLatestIsTheHighestStepAndTheLinkPointsToIt) {
  EXPECT_EQ(latest_checkpoint(folder_), "");
  EXPECT_EQ(latest_checkpoint(folder_ + "/none"), "");
  for (int64_t step : {2, 10, 100000000}) {
    const std::string path = save_checkpoint(folder_, OwnedState(step, 1).state, "");
    EXPECT_EQ(latest_checkpoint(folder_), path);
    EXPECT_EQ(std::filesystem::canonical(folder_ + "/latest"), std::filesystem::canonical(path));
  }
  EXPECT_EQ(names_in(folder_),
            (std::set<std::string>{"latest", "step-00000002", "step-00000010", "step-100000000"}));
}

TEST_F(CheckpointTest, OnlyTheLastAreKept) {
  for (const int64_t step : {5, 10, 100000000, 20})
    save_checkpoint(folder_, OwnedState(step, 1).state, "");
  std::filesystem::create_directory(folder_ + "/step-00000001");  // nobody's checkpoint
  keep_last(folder_, 4);
  EXPECT_EQ(complete_checkpoints(folder_).size(), 4u);
  keep_last(folder_, 2);
  EXPECT_EQ(names_in(folder_),
            (std::set<std::string>{"latest", "step-00000001", "step-00000020", "step-100000000"}));

  // What was being removed when a writer was killed goes with the next save.
  std::filesystem::rename(folder_ + "/step-00000020", folder_ + "/.removing");
  save_checkpoint(folder_, OwnedState(30, 1).state, "");
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/.removing"));
}

TEST_F(CheckpointTest, ACheckpointOfTheSameStepIsReplaced) {
  OwnedState first(5, 1), second(5, 2), loaded(0, 9);
  save_checkpoint(folder_, first.state, "");
  load_checkpoint(save_checkpoint(folder_, second.state, ""), loaded.state);
  EXPECT_EQ(state_hash(loaded.state), state_hash(second.state));
  EXPECT_EQ(names_in(folder_), (std::set<std::string>{"latest", "step-00000005"}));
}

TEST_F(CheckpointTest, EachSlotHasAFileThatHasTheParametersNames) {
  OwnedState saved(3, 1);
  const std::string path = save_checkpoint(folder_, saved.state, "");
  EXPECT_EQ(names_in(path),
            (std::set<std::string>{"manifest.json", "m.safetensors", "parameters.safetensors"}));
  for (size_t slot = 0; slot < 2; ++slot) {
    const auto tensors =
        read_tensors(path + (slot == 0 ? "/parameters.safetensors" : "/m.safetensors"),
                     [](const std::string&) { return true; });
    ASSERT_EQ(tensors.size(), 2u);
    EXPECT_EQ(tensors[0].name, "embed.token.weight");
    EXPECT_EQ(tensors[0].dims, (std::vector<int64_t>{100, 10}));
    EXPECT_EQ(tensors[0].values, *saved.storage[slot]);
    EXPECT_EQ(tensors[1].name, "head.bias");
    EXPECT_EQ(tensors[1].values, *saved.storage[2 + slot]);
  }
}

TEST_F(CheckpointTest, DamageIsNamedAndWhatIsNoValueLeavesTheStateUntouched) {
  OwnedState saved(3, 1), state(0, 9);
  const std::string path = save_checkpoint(folder_, saved.state, "");
  const std::string file = path + "/parameters.safetensors", bytes = slurp(file),
                    before = state_hash(state.state);

  spill(file, bytes.substr(0, bytes.size() - 1));
  EXPECT_TRUE(contains(load_fault(path, state.state), file + ": "))
      << load_fault(path, state.state);
  EXPECT_TRUE(contains(load_fault(path, state.state), "truncated"));
  spill(file, bytes + "x");
  EXPECT_TRUE(contains(load_fault(path, state.state), file + ": "));
  for (size_t place : {size_t{0}, size_t{20}}) {
    std::string flipped = bytes;
    flipped[place] ^= 4;
    spill(file, flipped);
    EXPECT_TRUE(contains(load_fault(path, state.state), file + ": damaged"))
        << place << ": " << load_fault(path, state.state);
  }
  std::filesystem::remove(file);
  EXPECT_EQ(load_fault(path, state.state), "cannot open " + file + ": No such file or directory");
  EXPECT_EQ(state_hash(state.state), before);
  std::string flipped = bytes;
  flipped.back() ^= 4;
  spill(file, flipped);
  EXPECT_TRUE(contains(load_fault(path, state.state),
                       file + ": damaged: elements 0 to 7 of head.bias are not those"));
  spill(file, bytes);
  EXPECT_EQ(load_fault(path, state.state), "no fault");
}

TEST_F(CheckpointTest, AManifestThatIsMissingMalformedAlteredOrOfAnotherVersionIsRefused) {
  OwnedState saved(3, 1), state(0, 9);
  const std::string path = save_checkpoint(folder_, saved.state, ""),
                    file = path + "/manifest.json";
  const auto manifest = nlohmann::json::parse(slurp(file));
  auto fault_of = [&](const std::string& text) {
    spill(file, text);
    return load_fault(path, state.state);
  };
  auto altered = [&](const char* key, const nlohmann::json& value) {
    auto copy = manifest;
    copy[key] = value;
    return copy.dump();
  };
  for (const int version : {1, 3})
    EXPECT_EQ(fault_of(altered("version", version)),
              fmt::format("{}: version {}, written by {} program; this one reads version 2", file,
                          version, version == 1 ? "an older" : "a newer"));
  auto other = manifest;
  other["files"][1]["tensors"][0]["sha256"][0] = std::string(64, '0');
  EXPECT_TRUE(contains(fault_of(other.dump()), file + ": damaged: the state's hash is"));
  other = manifest;
  other["files"][1]["tensors"][0]["sha256"].push_back(std::string(64, '0'));
  EXPECT_TRUE(contains(fault_of(other.dump()), file + ": damaged: it has not the hashes of "));
  other = manifest;
  other["files"][0]["name"] = "../../other";
  EXPECT_TRUE(contains(fault_of(other.dump()), file + ": damaged: ../../other is no name"));
  EXPECT_TRUE(contains(fault_of(manifest.dump().substr(0, 50)), file + ": damaged: "));
  EXPECT_TRUE(contains(fault_of("[]"), file + ": damaged: "));
  EXPECT_TRUE(contains(fault_of(altered("cursor", "many")), file + ": damaged: "));
  EXPECT_TRUE(contains(fault_of(altered("step", 4)), file + ": damaged: the state's hash is"));
  EXPECT_TRUE(contains(fault_of_checkpoint(path), file + ": damaged: the state's hash is"));
  EXPECT_EQ(fault_of(manifest.dump()), "no fault");
  EXPECT_EQ(fault_of_checkpoint(path), "");
  std::filesystem::remove(file);
  EXPECT_EQ(load_fault(path, state.state), "cannot open " + file + ": No such file or directory");
  EXPECT_EQ(latest_checkpoint(folder_), "");
}

TEST_F(CheckpointTest, EveryTensorThatDoesNotMatchIsListedAtOnce) {
  OwnedState saved(3, 1), state(0, 9);
  saved.add("old.weight", "parameter", {2, 2}, 0);
  const std::string path = save_checkpoint(folder_, saved.state, "");
  state.state.entries[0].dims = {10, 100};
  state.state.entries[3].slot = "v";
  const std::string before = state_hash(state.state), fault = load_fault(path, state.state);
  EXPECT_TRUE(contains(fault, "4 tensors do not match the job")) << fault;
  EXPECT_TRUE(contains(fault, "\n  embed.token.weight is [100,10], the job has [10,100]")) << fault;
  EXPECT_TRUE(contains(fault, "\n  head.bias (v) is missing")) << fault;
  EXPECT_TRUE(contains(fault, "\n  head.bias (m) is not in the job")) << fault;
  EXPECT_TRUE(contains(fault, "\n  old.weight is not in the job")) << fault;
  EXPECT_EQ(state_hash(state.state), before);
}

}  // namespace
}  // namespace tutti
