// Layouts at random: jobs, meshes and options that nothing refuses must end in the state of one
// rank.
#include "support/random_jobs.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

struct RandomJob {
  std::string text, settings;
};

RandomJob draw_mesh_job(Draw& draw) {
  const bool gpt = !draw.one_in(3);
  const int slices = draw.of({1, 1, 2, 4});
  std::string s = fmt::format(
      " train.steps=10 train.eval_every=5 train.seed={} train.lanes={} train.micro_batches={}",
      draw.of({1, 2, 3}), draw.of({2, 3, 4, 5, 8}), draw.of({1, 2, 3}));
  s += fmt::format(" train.micro_batch_size={} train.tensor_slices={}", draw.of({1, 2, 4}), slices);
  s += fmt::format(" train.optimizer={} train.clip_by={} train.clip=0.1",
                   draw.of({"adamw", "adamw", "lion", "lamb"}), draw.of({"norm", "unit", "value"}));
  s += " model.dropout=" + draw.of({"0", "0.2"});
  if (draw.one_in(3)) s += " numerics.order=micro";
  if (slices == 1 && draw.one_in(5)) s += " model.autograd=true";
  if (gpt) {
    s += fmt::format(
        " model.layers={} model.width={} model.tied={} model.norm={} model.activation={}",
        draw.of({1, 2, 4, 7}), draw.of({16, 32, 48}), draw.of({"true", "false"}),
        draw.of({"layer", "rms"}), draw.of({"gelu", "relu", "swiglu"}));
    s += " model.positions=" + draw.of({"learned", "rotary"});
    return {kSmallGpt, s};
  }
  s += fmt::format(" model.hidden={} model.norm={}",
                   draw.of({"[16]", "[64,32]", "[32,128,64,16,48]"}),
                   draw.of({"none", "none", "layer", "batch"}));
  return {kSmallMlp, s};
}

std::string draw_mesh(Draw& draw) {
  const int data = draw.of({1, 1, 2, 2, 3, 4}), tensor = draw.of({1, 1, 2, 4}),
            pipeline = draw.of({1, 2, 2, 3, 4});
  const int zero = draw.of({0, 1, 2, 3});
  std::string s = fmt::format(
      "ranks={} tensor={} pipeline={} zero={} recompute={} fold={} overlap={}",
      data * tensor * pipeline, tensor, pipeline, zero, draw.of({"none", "selective", "full"}),
      draw.of({"local", "owner"}), draw.of({"true", "false"}));
  if (pipeline > 1) {
    const std::string schedule = draw.of(names_of<PipelinePart>());
    s += " schedule=" + schedule;
    const PipelinePart& part = part_named<PipelinePart>(schedule);
    if (part.chunks == 0) s += fmt::format(" chunks={}", draw.of({1, 2, 3}));
    if (part.splits) s += fmt::format(" in_flight={}", draw.of({0, 1, 2, 3, 5}));
  }
  if (zero > 0 && data % 2 == 0) s += fmt::format(" shards={}", draw.of({0, 1, 2}));
  if (zero == 3) s += fmt::format(" depth={}", draw.of({1, 2, 4}));
  const int hosts = draw.of({1, 2, 4});
  if (hosts <= data * tensor * pipeline) s += fmt::format(" hosts={}", hosts);
  return s + draw.of({" workers=thread", " workers=thread", " workers=thread transport=tcp", "",
                      " transport=tcp"});
}

constexpr int64_t kMostRanks = 8;

bool is_legal(const RandomJob& random, const std::string& layout) {
  return legal([&] {
    Arguments arguments = settings_of(random.settings + " " + layout);
    std::erase(arguments, "--set");
    Job job = parse_job(random.text, "job.toml", as_settings(arguments));
    if (job.layout.ranks > kMostRanks) throw Error("too many");
    return job;
  });
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
    const RandomJob random = draw_mesh_job(draw);
    std::vector<std::string> layouts;
    for (int tries = 0; tries < 60 && layouts.size() < 2; ++tries)
      if (std::string layout = draw_mesh(draw); is_legal(random, layout))
        layouts.push_back(std::move(layout));
    if (layouts.empty()) continue;
    const Arguments job =
        Arguments{folder.write("job.toml", random.text)} + settings_of(random.settings);
    SCOPED_TRACE(fmt::format("seed {}, job{}", seed, random.settings));
    const Outcome expected =
        train_into(folder / std::to_string(++runs), job + settings_of("ranks=1"));
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
