// What ranks of a mesh hold, and that its values, hash and checkpoints are those of one rank with
// everything.
#include "state/units.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "comm/gather.h"
#include "config/model_rules.h"
#include "model/make_model.h"
#include "plan/make/plan_mesh.h"
#include "state/checkpoint.h"
#include "state/collect.h"
#include "state/load_checkpoint.h"
#include "support/host_device.h"
#include "support/tiny_gpt.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kSeed = 11;
const std::vector<std::string> kSlots = {"m", "v"};
const StateCounters kCounters{3, 96, ""};

struct Case {
  std::string name;
  int tensor = 1;  ///< slices of the model, and ranks for them
};
void PrintTo(const Case& which, std::ostream* out) { *out << which.name; }

/// A few layers whose units are of several chunks, or of one; or a GPT whose head, on another
/// stage, shares the first block's embedding.
Model made_model(const Case& which) {
  if (which.name == "tied") return make_model(tied_gpt(which.tensor));
  Job job = parse_job("", "job", {});
  job.train.tensor_slices = which.tensor;
  job.model.kind = "mlp";
  job.model.inputs = 100;
  job.model.hidden = {200, 90, 130};
  job.model.classes = 4;
  job.model.init = InitKind::kHeUniform;
  job.data.kind = "points";
  resolve(job, this_machine(), {});
  return make_model(job);
}

MeshOptions mesh_of(int tensor, int data, int pipeline, int shards, int zero) {
  MeshOptions options;
  options.mesh = {data, tensor, pipeline, shards};
  options.batch = {4, 2, 2};
  options.zero = zero;
  return options;
}

std::vector<MeshOptions> meshes(int tensor) {
  std::vector<MeshOptions> all;
  for (int zero = 0; zero <= 3; ++zero)
    for (const auto& [data, pipeline, shards] :
         {std::tuple{1, 1, 1}, {2, 1, 2}, {3, 1, 3}, {1, 3, 1}, {2, 2, 2}, {4, 1, 2}})
      all.push_back(mesh_of(tensor, data, pipeline, zero == 0 ? 1 : shards, zero));
  return all;
}

/// A rank's units with memory for their parameters.
struct RankUnits {
  RankUnits(const Model& model, const ModelShape& shape, const MeshOptions& options, int rank,
            Device* device = nullptr) {
    auto held = held_by(plan_mesh(shape, options), rank);
    std::vector<UnitMemory> memory;
    for (const Held& unit : held) {
      storage.push_back(std::make_unique<std::vector<float>>(unit.parameters.size(), NAN));
      memory.push_back({storage.back()->data(), {}});
    }
    units = std::make_unique<Units>(model, shape, held, kSlots, kSeed, memory, accounts, device);
  }
  Accounts accounts;
  std::vector<std::unique_ptr<std::vector<float>>> storage;
  std::unique_ptr<Units> units;
};

/// Values that all elements of a state can be told apart by.
float mark(size_t entry, int64_t element) {
  return static_cast<float>(entry + 1) + static_cast<float>(element) * 1e-5f;
}

void mark_all(const std::vector<StatePiece>& pieces) {
  for (const StatePiece& piece : pieces)
    for (int64_t i = 0; i < piece.range.size(); ++i)
      piece.values[i] = mark(piece.entry, piece.range.begin + i);
}

class UnitsTest : public testing::TestWithParam<Case> {
 protected:
  UnitsTest()
      : model_(made_model(GetParam())),
        shape_(describe(model_)),
        whole_(model_, shape_, all_held(shape_), kSlots, kSeed, {}, accounts_) {}
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-units-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  State marked() {
    State state = whole_.state(kCounters);
    for (size_t e = 0; e < state.entries.size(); ++e)
      for (size_t i = 0; i < state.entries[e].values.size(); ++i)
        state.entries[e].values[i] = mark(e, static_cast<int64_t>(i));
    return state;
  }

  Accounts accounts_;
  Model model_;
  ModelShape shape_;
  Units whole_;
  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(Models, UnitsTest,
                         testing::Values(Case{"mlp"}, Case{"tied"}, Case{"sliced", 2}),
                         [](const auto& which) { return which.param.name; });

TEST_P(UnitsTest, TheRanksOfEveryMeshTogetherHoldEachUnitAsOftenAsItsStageSays) {
  for (const MeshOptions& options : meshes(GetParam().tensor)) {
    SCOPED_TRACE(fmt::format("zero {} data {} pipeline {} shards {}", options.zero,
                             options.mesh.data, options.mesh.pipeline, options.mesh.shards));
    std::vector<int64_t> parameters(shape_.blocks.size()), moments(shape_.blocks.size());
    const Plan plan = plan_mesh(shape_, options);
    for (int rank = 0; rank < options.mesh.ranks(); ++rank) {
      const auto held = held_by(plan, rank);
      for (size_t u = 0; u < held.size(); ++u) {
        parameters[u] += held[u].parameters.size();
        moments[u] += held[u].moments.size();
        EXPECT_TRUE(held[u].moments.empty() || (held[u].parameters.begin <= held[u].moments.begin &&
                                                held[u].moments.end <= held[u].parameters.end));
      }
    }
    const int copies = options.mesh.data, replicas = options.mesh.data / options.mesh.shards;
    for (size_t u = 0; u < shape_.blocks.size(); ++u) {
      const int64_t size = shape_.blocks[u].unit_size;
      EXPECT_EQ(parameters[u], size * (options.zero == 3 ? replicas : copies)) << u;
      EXPECT_EQ(moments[u], size * (options.zero == 0 ? copies : replicas)) << u;
    }
  }
}

TEST_P(UnitsTest, PiecesStartWithTheValuesOfOneRank) {
  const State expected = whole_.state(kCounters);
  for (const MeshOptions& options : meshes(GetParam().tensor))
    for (int rank = 0; rank < options.mesh.ranks(); ++rank) {
      const RankUnits mine(model_, shape_, options, rank);
      EXPECT_EQ(mine.units->entries(), shapes_of(expected));
      for (const StatePiece& piece : mine.units->pieces()) {
        const auto values =
            expected.entries[piece.entry].values.subspan(piece.range.begin, piece.range.size());
        ASSERT_EQ(std::memcmp(piece.values.data(), values.data(), values.size_bytes()), 0)
            << expected.entries[piece.entry].name << " " << expected.entries[piece.entry].slot;
      }
    }
}

TEST_P(UnitsTest, PointersIntoAUnitAreThoseOfItsPieces) {
  const MeshOptions options = mesh_of(GetParam().tensor, 2, 1, 2, 3);
  const RankUnits mine(model_, shape_, options, 1);
  size_t seen = 0;
  for (const StatePiece& piece : mine.units->pieces()) {
    const EntryShape& entry = mine.units->entries()[piece.entry];
    for (size_t u = 0; u < shape_.blocks.size(); ++u)
      for (const ParameterShape& p : shape_.blocks[u].parameters) {
        if (p.name != entry.name) continue;
        const int unit = static_cast<int>(u);
        const int64_t at = p.offset + piece.range.begin;
        float* found = entry.slot == "parameter"
                           ? mine.units->parameters(unit, at)
                           : mine.units->slots(unit, at)[entry.slot == "m" ? 0 : 1];
        EXPECT_EQ(found, piece.values.data()) << entry.name << " " << entry.slot;
        ++seen;
      }
  }
  EXPECT_EQ(seen, mine.units->pieces().size());
  EXPECT_GT(mine.accounts.current(BufferKind::kMoment), 0);
  EXPECT_LT(mine.accounts.current(BufferKind::kMoment),
            accounts_.current(BufferKind::kMoment) * 6 / 10);
}

TEST_P(UnitsTest, AMirrorFollowsTheDeviceAndIsUploaded) {
  HostDevice device;
  const MeshOptions options = mesh_of(GetParam().tensor, 2, 1, 2, 2);
  RankUnits on_device(model_, shape_, options, 0, &device), on_host(model_, shape_, options, 0);
  const auto& there = on_device.units->pieces();
  const auto& here = on_host.units->pieces();
  ASSERT_EQ(there.size(), here.size());
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(there[i].range, here[i].range);
    EXPECT_TRUE(std::equal(here[i].values.begin(), here[i].values.end(), there[i].values.begin()));
  }
  EXPECT_EQ(*on_device.units->parameters(0, 0), here[0].values[0]);
  mark_all(there);
  on_device.units->upload();
  EXPECT_EQ(*on_device.units->parameters(0, 1), mark(0, 1));
  *on_device.units->parameters(0, 1) = 77;
  on_device.units->copy_out(device.make_stream());
  EXPECT_EQ(there[0].values[1], 77);
}

TEST_P(UnitsTest, TheHashAndTheCheckpointOfEveryMeshAreThoseOfOneRankAndLoadBothWays) {
  const State one = marked();
  const std::string hash = state_hash(one), path = save_checkpoint(folder_ + "/one", one, "job");
  const auto files_in = [](const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const std::string& name : names_in(checkpoint))
      files[name] = read_file(checkpoint + "/" + name);
    return files;
  };
  const auto files = files_in(path);
  int number = 0;
  for (const MeshOptions& options : meshes(GetParam().tensor)) {
    SCOPED_TRACE(fmt::format("zero {} data {} pipeline {} shards {}", options.zero,
                             options.mesh.data, options.mesh.pipeline, options.mesh.shards));
    const std::string folder = fmt::format("{}/{}", folder_, number++);
    over({"inproc", "inproc", true, false}, options.mesh.ranks(), [&](TestRank& me) {
      Channel channel(me.transport, me.clock, {64, 79}, std::chrono::seconds(20));
      RankUnits saver(model_, shape_, options, me.rank), loader(model_, shape_, options, me.rank);
      mark_all(saver.units->pieces());
      Collector collector(saver.units->entries(), saver.units->pieces(), channel);
      EXPECT_EQ(collector.hash(kCounters), hash);
      collector.save({.folder = folder, .counters = kCounters, .job_toml = "job"},
                     [&](const std::string& mine) { return gather_bytes(mine, channel); });
      EXPECT_EQ(load_checkpoint(path, loader.units->entries(), loader.units->pieces()).step,
                kCounters.step);
      EXPECT_EQ(Collector(loader.units->entries(), loader.units->pieces(), channel).hash(kCounters),
                hash);
    });
    EXPECT_TRUE(files_in(latest_checkpoint(folder)) == files);
    Units back(model_, shape_, all_held(shape_), kSlots, kSeed + 1, {}, accounts_);
    State loaded = back.state({});
    load_checkpoint(latest_checkpoint(folder), loaded);
    EXPECT_EQ(state_hash(loaded), hash);
  }
}

}  // namespace
}  // namespace tutti
