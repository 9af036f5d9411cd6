// The promise for everything a trainer has: models, optimizers, clipping, groups, schedules that
// watch, augmentation, resampling, teachers and partitions, each over several layouts.
#include <png.h>

#include <set>

#include "support/small_data.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

// Odd numbers of lanes: no number of ranks owns whole subtrees only.
constexpr const char* kTrain = R"(
[train]
lanes = 5
micro_batches = 2
micro_batch_size = 3
steps = 6
lr = 1e-2
eval_every = 3
eval_batches = 2
)";
constexpr const char* kImages = R"(
[model]
kind = "mlp"
inputs = 64
image = [1, 8, 8]
hidden = [12]
classes = 4
init = "he-normal"
dropout = 0.2
[data]
kind = "numpy"
scale = "standardise"
held_out = 0.2
)";
constexpr const char* kCnn = R"(
[model]
kind = "cnn"
image = [1, 8, 8]
channels = [4, 8]
classes = 4
init = "he-normal"
[data]
kind = "numpy"
scale = "standardise"
held_out = 0.2
)";
constexpr const char* kWideDeep = R"(
[model]
kind = "wide-deep"
embedding = 4
hidden = [8]
[data]
kind = "clicks"
)";
constexpr const char* kAutoencoder = R"(
[model]
kind = "autoencoder"
inputs = 64
hidden = [12]
latent = 3
norm = "batch"
[data]
kind = "numpy"
scale = "unit"
held_out = 0.2
)";
constexpr const char* kTable = R"(
[model]
kind = "mlp"
hidden = [9]
norm = "layer"
[data]
kind = "csv"
held_out = 0.2
columns = ["size: number standardise", "colour: one-hot red|green|blue", "kind: target no|yes"]
)";

constexpr const char* kWideTable = R"(
[model]
kind = "wide-deep"
embedding = 4
hidden = [8]
[data]
kind = "csv"
held_out = 0.2
columns = ["size: number min-max", "colour: category red|green|blue", "city: category hash=16",
           "share: target", "weight: weight"]
)";
constexpr const char* kPictures = R"(
[model]
kind = "cnn"
image = [3, 8, 8]
channels = [4]
classes = 2
[data]
kind = "images"
scale = "standardise"
held_out = 0.2
bad = "skip"
)";
constexpr const char* kText = R"(
[model]
kind = "gpt"
layers = 1
width = 16
heads = 2
context = 8
vocab = 270
[data]
kind = "text"
tokenizer = "bpe"
held_out = 0.2
)";

/// PNG files of two classes, of other sizes than the model reads, one of them cut off.
std::string write_pictures(const TempFolder& folder) {
  for (int i = 0; i < 24; ++i) {
    const bool dark = i % 2 == 0;
    const int side = 6 + i % 5;
    std::vector<uint8_t> rows;
    for (int k = 0; k < side * side * 3; ++k)
      rows.push_back(static_cast<uint8_t>(draw_below(7, static_cast<uint64_t>(i * 1000 + k), 100) +
                                          (dark ? 0 : 120)));
    png_image png{};
    png.version = PNG_IMAGE_VERSION;
    png.width = png.height = static_cast<uint32_t>(side);
    png.format = PNG_FORMAT_RGB;
    png_alloc_size_t size = 0;
    EXPECT_NE(png_image_write_to_memory(&png, nullptr, &size, 0, rows.data(), 0, nullptr), 0)
        << png.message;
    std::string file(size, '\0');
    EXPECT_NE(png_image_write_to_memory(&png, file.data(), &size, 0, rows.data(), 0, nullptr), 0)
        << png.message;
    file.resize(i == 7 ? size / 2 : size);
    const std::string inside = dark ? "pictures/dark" : "pictures/light";
    std::filesystem::create_directories(folder / inside);
    folder.write(inside + "/" + std::to_string(i) + ".png", file);
  }
  return folder / "pictures";
}

struct Result {
  std::string hash, order;
  int64_t step = 0;
  std::vector<double> losses, norms, rates, held_out;
  bool operator==(const Result&) const = default;
};
void PrintTo(const Result& result, std::ostream* out) {
  *out << result.hash << " order " << result.order << " step " << result.step << " losses "
       << testing::PrintToString(result.losses) << " norms " << testing::PrintToString(result.norms)
       << " rates " << testing::PrintToString(result.rates) << " held out "
       << testing::PrintToString(result.held_out);
}

struct Case {
  std::string name, job;
  Arguments settings;
  std::vector<Arguments> layouts{};  // besides one process
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

nlohmann::json end_of(const std::string& run) {
  return nlohmann::json::parse(lines_in(run + "/events.jsonl").back());
}

class TrainerBits : public testing::TestWithParam<Case> {
 protected:
  /// Trains a job of this test, whose data it brings along.
  Result train(const Arguments& layout) {
    last_ = folder_ / std::to_string(++runs_);
    Command command(Arguments{"train", job_, "--out", last_} + set(data_) +
                    set(GetParam().settings) + set(layout));
    EXPECT_EQ(command.wait(), 0) << command.err();
    if (command.wait() != 0) return {};
    const auto end = end_of(last_);
    return {command.hash(),
            end.at("order"),
            end.at("step"),
            metric_of(last_, "step", "loss"),
            metric_of(last_, "step", "gradient_norm"),
            metric_of(last_, "step", "lr"),
            metric_of(last_, "eval", "held_out_loss")};
  }
  void SetUp() override {
    const std::string& text = GetParam().job;
    job_ = folder_.write("job.toml", text + kTrain);
    if (text.find("\"numpy\"") != std::string::npos)
      data_ = write_images(folder_, "images", 60, 8, 4);
    if (text.find("\"images\"") != std::string::npos)
      data_ = {"data.path=" + write_pictures(folder_)};
    if (text.find("\"text\"") != std::string::npos)
      data_ = {"data.path=" + write_table(folder_, "text.txt", 80)};
    if (text.find("\"csv\"") != std::string::npos)
      data_ = {"data.path=" + write_table(folder_, "table.csv", 80)};
  }

  TempFolder folder_;
  std::string job_, last_;
  Arguments data_;
  int runs_ = 0;
};

TEST_P(TrainerBits, DoNotDependOnTheLayout) {
  const Result expected = train({"layout.ranks=1"});
  ASSERT_EQ(expected.hash.size(), 64u);
  EXPECT_GE(expected.losses.size(), 3u);
  EXPECT_FALSE(expected.held_out.empty());
  for (const Arguments& layout : GetParam().layouts) {
    SCOPED_TRACE(testing::PrintToString(layout));
    EXPECT_EQ(train(layout), expected);
  }
}

const std::vector<Arguments> kFew = {
    {"layout.ranks=2", "layout.overlap=false"},
    {"layout.ranks=3", "layout.workers=thread", "layout.partition=hash"},
    {"layout.ranks=4", "layout.transport=tcp", "layout.bucket_floats=1"},
};
const std::vector<Arguments> kPartitions = {
    {"layout.ranks=1", "layout.partition=even"},
    {"layout.ranks=2", "layout.partition=even", "layout.hosts=2"},
    {"layout.ranks=3", "layout.partition=round-robin", "layout.transport=tcp"},
    {"layout.ranks=3", "layout.partition=feature", "layout.partition_by=class"},
    {"layout.ranks=2", "layout.partition=hash", "layout.workers=thread", "layout.fold=root"},
};

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"ImagesOverEveryPartition", kImages, {"loss.label_smoothing=0.1"}, kPartitions});
  all.push_back(
      {"WideDeepWithAdam", kWideDeep, {"train.optimizer=adam", "train.weight_decay=0.01"}, kFew});
  all.push_back(
      {"AutoencoderWithLion", kAutoencoder, {"train.optimizer=lion", "train.lr=1e-3"}, kFew});
  all.push_back({"TableWithLamb",
                 kTable,
                 // a parameter of more than one chunk, which ranks share out
                 {"train.optimizer=lamb", "train.weight_decay=0.01", "model.hidden=[100, 50]"},
                 {{"layout.ranks=2", "layout.partition=feature", "layout.partition_by=colour"},
                  {"layout.ranks=3", "layout.transport=tcp"}}});
  all.push_back({"SgdClippedByUnit",
                 kImages,
                 {"train.optimizer=sgd", "train.momentum=0.9", "train.clip_by=unit",
                  "train.clip=0.05", "model.hidden=[80]"},
                 kFew});
  all.push_back({"AdagradClippedByValue",
                 kImages,
                 {"train.optimizer=adagrad", "train.clip_by=value", "train.clip=1e-3"},
                 kFew});
  all.push_back({"RmspropWithGroups",
                 kImages,
                 {"train.optimizer=rmsprop", "train.momentum=0.5",
                  "train.groups=[\"layers.0.weight frozen\", \"*.bias lr=0.1 weight_decay=0\"]"},
                 kFew});
  all.push_back({"Plateau",
                 kImages,
                 {"train.schedule=plateau", "train.factor=0.5", "train.patience=1",
                  "train.eval_every=1", "train.min_change=1", "train.steps=5"},
                 kFew});
  all.push_back({"EarlyStopWithTheBestKept",
                 kImages,
                 {"train.early_stop=2", "train.keep_best=true", "train.eval_every=1",
                  "train.min_change=1", "train.watch=accuracy", "train.steps=50"},
                 kFew});
  all.push_back({"AugmentationWithMixup",
                 kCnn,
                 {"augment.crop=1", "augment.flip=0.5", "augment.rotate=10", "augment.noise=0.1",
                  "augment.cutout=3", "augment.mixup=0.4", "train.steps=4"},
                 kFew});
  all.push_back({"Resampled",
                 kImages,
                 {"data.resample=balanced"},
                 {{"layout.ranks=3", "layout.partition=feature"},
                  {"layout.ranks=2", "layout.partition=round-robin"}}});
  all.push_back({"WideDeepOverATable", kWideTable, {"data.resample=column"}, kFew});
  all.push_back({"FolderOfPictures", kPictures, {"train.steps=3"}, kFew});
  all.push_back({"TokensOfAText", kText, {"train.steps=3"}, kFew});
  all.push_back({"CnnWithBatchNorm", kCnn, {"model.norm=batch", "train.steps=4"}, kFew});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, TrainerBits, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

/// Cases that say more than that all layouts agree.
class Trainers : public testing::Test {
 protected:
  /// A run of a job over the test's images.
  std::string train(const std::string& name, const char* job, const Arguments& settings,
                    const Arguments& more = {}) {
    const std::string run = folder_ / name;
    Command command(
        Arguments{"train", folder_.write(name + ".toml", job + std::string(kTrain)), "--out", run} +
        set(images_) + set(settings) + more);
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.hash();
  }
  std::string resume(const std::string& name, const Arguments& more) {
    Command command(Arguments{"train", "--resume", folder_ / name} + more);
    EXPECT_EQ(command.wait(), 0) << command.err();
    return command.hash();
  }
  std::vector<double> numbers(const std::string& run, const char* event, const char* field) {
    return metric_of(folder_ / run, event, field);
  }
  TempFolder folder_;
  const Arguments images_ = write_images(folder_, "images", 60, 8, 4);
};

TEST_F(Trainers, DistillFromATeacherToOneState) {
  train("teacher", kImages, {"model.hidden=[20, 20]", "train.steps=8"}, {"--steps", "4"});
  const Arguments taught = {"loss.kind=distill", "loss.teacher=" + (folder_ / "teacher"),
                            "loss.mix=0.7"};
  const std::string expected = train("one", kImages, taught + Arguments{"layout.ranks=1"});
  EXPECT_EQ(train("two", kImages, taught + Arguments{"layout.ranks=2"}), expected);
  EXPECT_EQ(train("three", kImages, taught + Arguments{"layout.ranks=3", "layout.workers=thread"}),
            expected);
  EXPECT_NE(train("alone", kImages, {"layout.ranks=2"}), expected);

  // A student that goes on is taught by the checkpoint that it began with.
  train("stopped", kImages, taught, {"--steps", "1"});
  resume("teacher", {});
  EXPECT_EQ(resume("stopped", {"--ranks", "2"}), expected);
  EXPECT_NE(train("later", kImages, taught), expected);
  EXPECT_EQ(train("as before", kImages, taught + Arguments{"loss.teacher_step=4"}), expected);
  std::filesystem::remove_all(folder_ / "teacher/checkpoints/step-00000004");
  Command none(Arguments{"train", folder_ / "one.toml"} + set(images_) + set(taught) +
               set({"loss.teacher_step=4"}) + Arguments{"--out", folder_ / "none"});
  EXPECT_EQ(none.wait(), 1);
  EXPECT_TRUE(
      none.says("teacher/checkpoints: there is no checkpoint of step 4; the last of 1 is of "
                "step 8"))
      << none.err();
}

TEST_F(Trainers, LowerTheRateOnAPlateauAndStopEarly) {
  train("run", kImages,
        {"train.schedule=plateau", "train.factor=0.5", "train.patience=1", "train.eval_every=1",
         "train.min_change=1", "train.early_stop=3", "train.keep_best=true", "train.steps=50",
         "layout.ranks=2"});
  // Nothing gets better by 1: the first evaluation is the best, every other one lowers the rate,
  // the fourth ends it.
  const auto rates = numbers("run", "step", "lr");
  ASSERT_EQ(rates.size(), 4u);
  EXPECT_EQ(rates[0], 0.01);
  EXPECT_EQ(rates[1], 0.01);
  EXPECT_EQ(rates[2], 0.005);
  EXPECT_EQ(rates[3], 0.0025);
  EXPECT_EQ(end_of(folder_ / "run").at("step"), 4);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/best/step-00000001"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run/best/step-00000002"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/checkpoints/step-00000004"));
}

TEST_F(Trainers, OfAnotherJobEndInAnotherState) {
  std::set<std::string> hashes;
  int runs = 0;
  for (const Arguments& job : std::vector<Arguments>{{"train.seed=1"},
                                                     {"train.clip_by=unit", "train.clip=0.05"},
                                                     {"train.clip_by=value", "train.clip=1e-3"},
                                                     {"data.resample=balanced"},
                                                     {"augment.flip=0.5"},
                                                     {"train.groups=[\"head.* frozen\"]"},
                                                     {"model.norm=batch"}}) {
    const std::string hash =
        train(std::to_string(++runs), kImages, job + Arguments{"layout.ranks=2", "train.steps=2"});
    EXPECT_TRUE(hashes.insert(hash).second) << testing::PrintToString(job) << " changed nothing";
  }
  EXPECT_NE(end_of(folder_ / "1").at("order"), end_of(folder_ / "4").at("order"))
      << "drawn by weight";
  EXPECT_EQ(end_of(folder_ / "1").at("order"), end_of(folder_ / "5").at("order"))
      << "flipped, in the same order";
}

}  // namespace
}  // namespace tutti
