// Layouts at random: jobs, meshes and options that nothing refuses must end in the state of one rank.
#include <random>

#include "base/error.h"
#include "model/make_model.h"
#include "optim/optimizer.h"
#include "plan/schedule.h"
#include "support/layout_runs.h"
#include "train/mesh_rank.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  template <class T>
  T of(std::initializer_list<T> values) {
    return *(values.begin() + engine_() % values.size());
  }
  std::string of(std::initializer_list<const char*> values) { return *(values.begin() + engine_() % values.size()); }
  bool one_in(uint64_t n) { return engine_() % n == 0; }

 private:
  std::mt19937_64 engine_;
};

struct RandomJob {
  std::string text, settings;
};

RandomJob draw_job(Draw& draw) {
  const bool gpt = !draw.one_in(3);
  const int slices = draw.of({1, 1, 2, 4});
  std::string s = fmt::format(" train.steps=10 train.eval_every=5 train.seed={} train.lanes={} train.micro_batches={}",
                              draw.of({1, 2, 3}), draw.of({2, 3, 4, 5, 8}), draw.of({1, 2, 3}));
  s += fmt::format(" train.micro_batch_size={} train.tensor_slices={}", draw.of({1, 2, 4}), slices);
  s += fmt::format(" train.optimizer={} train.clip_by={} train.clip=0.1", draw.of({"adamw", "adamw", "lion", "lamb"}),
                   draw.of({"norm", "unit", "value"}));
  s += " model.dropout=" + draw.of({"0", "0.2"});
  if (draw.one_in(3)) s += " numerics.order=micro";
  if (slices == 1 && draw.one_in(5)) s += " model.autograd=true";
  if (gpt) {
    s += fmt::format(" model.layers={} model.width={} model.tied={} model.norm={} model.activation={}",
                     draw.of({1, 2, 4, 7}), draw.of({16, 32, 48}), draw.of({"true", "false"}),
                     draw.of({"layer", "rms"}), draw.of({"gelu", "relu", "swiglu"}));
    s += " model.positions=" + draw.of({"learned", "rotary"});
    return {kSmallGpt, s};
  }
  s += fmt::format(" model.hidden={} model.norm={}", draw.of({"[16]", "[64,32]", "[32,128,64,16,48]"}),
                   draw.of({"none", "none", "layer", "batch"}));
  return {kSmallMlp, s};
}

std::string draw_layout(Draw& draw) {
  const int data = draw.of({1, 1, 2, 2, 3, 4}), tensor = draw.of({1, 1, 2, 4}), pipeline = draw.of({1, 2, 2, 3, 4});
  const int zero = draw.of({0, 1, 2, 3});
  std::string s = fmt::format("ranks={} tensor={} pipeline={} zero={} recompute={} fold={} overlap={}",
                              data * tensor * pipeline, tensor, pipeline, zero, draw.of({"none", "selective", "full"}),
                              draw.of({"local", "owner"}), draw.of({"true", "false"}));
  if (pipeline > 1) {
    const std::string schedule = draw.of({"1f1b", "gpipe", "interleaved", "zero-bubble", "zbv"});
    s += " schedule=" + schedule;
    if (schedule == "interleaved") s += fmt::format(" chunks={}", draw.of({1, 2, 3}));
    if (splits_backward(schedule)) s += fmt::format(" in_flight={}", draw.of({0, 1, 2, 3, 5}));
  }
  if (zero > 0 && data % 2 == 0) s += fmt::format(" shards={}", draw.of({0, 1, 2}));
  if (zero == 3) s += fmt::format(" depth={}", draw.of({1, 2, 4}));
  const int hosts = draw.of({1, 2, 4});
  if (hosts <= data * tensor * pipeline) s += fmt::format(" hosts={}", hosts);
  return s + draw.of({" workers=thread", " workers=thread", " workers=thread transport=tcp", "", " transport=tcp"});
}

/// Whether neither the job's rules nor the mesh's refuse it.
bool legal(const RandomJob& random, const std::string& layout) {
  std::vector<Setting> settings;
  const Arguments arguments = settings_of(random.settings + " " + layout);
  for (size_t i = 1; i < arguments.size(); i += 2) {
    const size_t equals = arguments[i].find('=');
    settings.push_back({arguments[i].substr(0, equals), arguments[i].substr(equals + 1)});
  }
  try {
    Job job = parse_job(random.text, "job.toml", settings);
    resolve(job, this_machine());
    if (job.layout.ranks > 8) return false;
    const ModelShape shape = describe(make_model(job));
    const auto slots = static_cast<int>(make_optimizer(job.train)->slots().size());
    return mesh_faults(shape, mesh_options(job, shape, slots)).empty();
  } catch (const Error&) {
    return false;
  }
}

/// Each of several sweeps has a seed of its own; TUTTI_TEST_SEED repeats one.
class RandomMeshes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sweep, RandomMeshes, testing::Range(1, 5));

TEST_P(RandomMeshes, EndInTheStateOfOneRank) {
  const char* given = std::getenv("TUTTI_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Draw draw(seed);
  TempFolder folder;
  for (int cases = 0, runs = 0; cases < 6;) {
    const RandomJob random = draw_job(draw);
    std::vector<std::string> layouts;
    for (int tries = 0; tries < 60 && layouts.size() < 2; ++tries)
      if (std::string layout = draw_layout(draw); legal(random, layout)) layouts.push_back(std::move(layout));
    if (layouts.empty()) continue;
    const Arguments job = Arguments{folder.write("job.toml", random.text)} + settings_of(random.settings);
    SCOPED_TRACE(fmt::format("seed {}, job{}", seed, random.settings));
    const Outcome expected = train_into(folder / std::to_string(++runs), job + settings_of("ranks=1"));
    ASSERT_EQ(expected.hash.size(), 64u);
    for (const std::string& layout : layouts) {
      SCOPED_TRACE(layout);
      EXPECT_EQ(train_into(folder / std::to_string(++runs), job + settings_of(layout)), expected);
      ++cases;
    }
  }
}

}  // namespace
}  // namespace tutti
