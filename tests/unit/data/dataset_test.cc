#include "data/core/dataset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "data/core/sources.h"
#include "infer/baseline.h"
#include "unit/data/files_case.h"

namespace tutti {
namespace {

class DataTest : public files_case::FilesTest {
 protected:
  static Job text_job(const std::string& path) {
    Job job;
    job.data.kind = "text";
    job.data.tokenizer = "bytes";
    job.data.path = path;
    job.data.held_out = 0.2;
    job.model.context = 4;
    job.model.vocab = 256;
    job.train.seed = 3;
    return job;
  }
  static std::string fault(const Job& job) {
    return files_case::fault([&] { open_data(job); });
  }
};

std::shared_ptr<const Dataset> text_of(const std::string& path) {
  return open_text(read_unchanged(path), path, 4, 256);
}

std::vector<Border> text_borders(int64_t rows, int64_t context) {
  return {{"tokens", {rows, context}, at::kLong}, {"targets", {rows, context}, at::kLong}};
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  const auto* begin = tensor.const_data_ptr<int64_t>();
  return {begin, begin + tensor.numel()};
}

TEST_F(DataTest, ATextRecordIsItsBytesAndTheSameBytesOneFurther) {
  auto text = text_of(write("t", "abcdefgh\xff"));
  ASSERT_EQ(text->size(), 2);
  auto tensors = allocate(text_borders(2, 4));
  text->read(0, tensors, 1);
  text->read(1, tensors, 0);
  EXPECT_EQ(values(tensors[0]), (std::vector<int64_t>{'e', 'f', 'g', 'h', 'a', 'b', 'c', 'd'}));
  EXPECT_EQ(values(tensors[1]), (std::vector<int64_t>{'f', 'g', 'h', 255, 'b', 'c', 'd', 'e'}));
}

TEST_F(DataTest, AFileTruncatedAfterOpeningIsStillRead) {
  const std::string path = write("t", std::string(100000, 'x'));
  auto text = text_of(path);
  std::filesystem::resize_file(path, 0);
  auto tensors = allocate(text_borders(1, 4));
  text->read(text->size() - 1, tensors, 0);
  EXPECT_EQ(values(tensors[1]), (std::vector<int64_t>{'x', 'x', 'x', 'x'}));
}

TEST_F(DataTest, TheSplitIsAPartitionOfTheRecordsAndKeyedByTheSeed) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += fmt::format("{:04}", i);
  Job job = text_job(write("t", bytes + "."));
  auto records = [&](const Dataset& data) {
    std::set<std::vector<int64_t>> found;
    auto tensors = allocate(text_borders(1, 4));
    for (int64_t i = 0; i < data.size(); ++i) {
      data.read(i, tensors, 0);
      found.insert(values(tensors[0]));
    }
    return found;
  };
  Split split = open_data(job);
  auto train = records(*split.train), evaluation = records(*split.held_out);
  EXPECT_EQ(train.size() + evaluation.size(), 1000u);
  EXPECT_GT(evaluation.size(), 140u);
  EXPECT_LT(evaluation.size(), 260u);
  for (const auto& record : evaluation) EXPECT_EQ(train.count(record), 0u);
  EXPECT_EQ(records(*open_data(job).held_out), evaluation);
  job.train.seed = 4;
  EXPECT_NE(records(*open_data(job).held_out), evaluation);
  job.data.held_out = 0;
  EXPECT_EQ(open_data(job).held_out->size(), 0);
}

TEST_F(DataTest, ANumberOfHeldOutRecordsIsExactAndAFractionThatComesOutFarFromItIsSaid) {
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes += fmt::format("{:04}", i);
  Job job = text_job(write("t", bytes + "."));
  std::set<int64_t> drawn;
  job.data.held_out = 0.25;
  for (job.train.seed = 1; job.train.seed < 300; ++job.train.seed) {
    if (fault(job).find("leaves none") != std::string::npos) continue;
    const Split split = open_data(job);
    const int64_t held = split.held_out->size();
    drawn.insert(held);
    EXPECT_EQ(split.report.notice.empty(), held >= 3 && held <= 5)
        << held << ": " << split.report.notice;
    if (held == 1)
      EXPECT_EQ(split.report.notice,
                "data.held_out = 0.25 of 16 records would be 4, but 1 came out: each is drawn by "
                "itself; data.held_out "
                "= 4 holds out exactly so many");
  }
  EXPECT_TRUE(drawn.contains(1)) << "no seed shows the case";
  for (int count : {1, 4, 15}) {
    job.data.held_out = count;
    for (job.train.seed = 1; job.train.seed < 20; ++job.train.seed) {
      const Split split = open_data(job);
      EXPECT_EQ(split.held_out->size(), count);
      EXPECT_EQ(split.train->size(), 16 - count);
      EXPECT_EQ(split.report.notice, "");
    }
  }
  job.data.held_out = 16;
  EXPECT_EQ(fault(job),
            job.data.path + ": data.held_out = 16 of 16 records leaves none for training");
  job.data.held_out = 17;
  EXPECT_EQ(fault(job), job.data.path + ": data.held_out = 17, but there are 16 records");
  job.data.kind = "walk";
  EXPECT_EQ(open_data(job).held_out->size(), 17);
}

TEST_F(DataTest, EveryFaultOfAFileNamesTheFileAndTheFault) {
  const std::string none = folder_ + "/none";
  EXPECT_EQ(fault(text_job(none)), "cannot open " + none + ": No such file or directory");
  EXPECT_EQ(fault(text_job(folder_)), folder_ + ": a folder, not a file");
  const std::string empty = write("empty", ""), brief = write("short", "abcd"),
                    lone = write("lone", "abcde");
  EXPECT_EQ(fault(text_job(empty)), empty + ": the file is empty");
  EXPECT_EQ(fault(text_job(brief)),
            brief + ": 4 bytes are too short for one record of model.context + 1 = 5 bytes");
  EXPECT_NE(fault(text_job(lone)).find(lone + ": data.held_out = 0.2 of 1 records leaves none for"),
            std::string::npos);
  Job job = text_job(brief);
  job.model.context = 2;
  job.model.vocab = 100;
  EXPECT_EQ(fault(job), brief + ": byte 100 at offset 3 is outside model.vocab = 100");
}

TEST_F(DataTest, TheKingJamesTextLiesInTheDataFolderAndSetupIsTheRemedy) {
  setenv("TUTTI_DATA", folder_.c_str(), 1);
  EXPECT_EQ(fault(text_job("kjv")),
            folder_ + "/kjv.txt: the King James text is missing; run ./tutti setup");
  const std::string path = write("kjv.txt", "In the beginning");
  EXPECT_EQ(resolve_path("kjv"), path);
  unsetenv("TUTTI_DATA");
}

TEST_F(DataTest, AWalkStepsByZeroToFourAndIsAFunctionOfSeedAndRecord) {
  Job job = text_job("");
  job.data.kind = "walk";
  job.model.context = 1000;
  Split split = open_data(job);
  EXPECT_EQ(split.train->size(), int64_t{1} << 40);
  EXPECT_GT(split.held_out->size(), 0);
  auto a = allocate(text_borders(1, 1000)), b = allocate(text_borders(1, 1000));
  const int64_t record = (int64_t{1} << 40) - 1;
  split.train->read(record, a, 0);
  auto tokens = values(a[0]), targets = values(a[1]);
  std::set<int64_t> steps, places(targets.begin(), targets.end());
  for (size_t i = 0; i < tokens.size(); ++i) {
    steps.insert((targets[i] - tokens[i] + 256) % 256);
    if (i > 0) ASSERT_EQ(tokens[i], targets[i - 1]);
  }
  EXPECT_EQ(steps, (std::set<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_LT(*places.rbegin(), 256);
  EXPECT_GT(places.size(), 100u);
  open_data(job).train->read(record, b, 0);
  EXPECT_EQ(values(b[1]), targets);
  split.train->read(0, b, 0);
  const auto first = values(b[1]);
  split.held_out->read(0, b, 0);
  EXPECT_NE(values(b[1]), first);  // the held-out records are other ones
  job.train.seed += 1;
  open_data(job).train->read(record, b, 0);
  EXPECT_NE(values(b[1]), targets);
}

TEST_F(DataTest, PointsOfAClassLieAroundItsCentre) {
  Job job;
  job.data.kind = "points";
  job.data.held_out = 0.1;
  job.model.inputs = 64;
  job.model.classes = 3;
  Split split = open_data(job);
  auto tensors = allocate({{"features", {1, 64}, at::kFloat}, {"targets", {1}, at::kLong}});
  std::vector<std::vector<double>> mean(3, std::vector<double>(64));
  std::vector<double> count(3);
  auto read = [&](const Dataset& data, int64_t record) {
    data.read(record, tensors, 0);
    return static_cast<size_t>(values(tensors[1])[0]);
  };
  for (int64_t record = 0; record < 600; ++record) {
    const size_t label = read(*split.train, record);
    ASSERT_LT(label, 3u);
    ASSERT_EQ(split.train->label(record), static_cast<int64_t>(label));
    count[label] += 1;
    for (size_t i = 0; i < 64; ++i) mean[label][i] += tensors[0].const_data_ptr<float>()[i];
  }
  int right = 0;
  for (int64_t record = 0; record < 100; ++record) {
    const size_t label = read(*split.held_out, record);
    std::vector<double> distance(3);
    for (size_t k = 0; k < 3; ++k) {
      for (size_t i = 0; i < 64; ++i) {
        distance[k] += std::pow(tensors[0].const_data_ptr<float>()[i] - mean[k][i] / count[k], 2);
      }
    }
    right += std::min_element(distance.begin(), distance.end()) - distance.begin() ==
             static_cast<int64_t>(label);
  }
  EXPECT_GT(right, 95);
}

TEST_F(DataTest, EvaluationPadsItsLastMicroBatchWithMaskedTargets) {
  auto text = text_of(write("t", "abcdefghijklm"));
  auto borders = text_borders(2, 4);
  std::vector<at::Tensor> tensors;
  read_eval(*text, borders, 0, 3, tensors);
  EXPECT_EQ(values(tensors[1]), (std::vector<int64_t>{'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i'}));
  read_eval(*text, borders, 2, 3, tensors);
  EXPECT_EQ(values(tensors[0]), (std::vector<int64_t>{'i', 'j', 'k', 'l', 0, 0, 0, 0}));
  EXPECT_EQ(values(tensors[1]), (std::vector<int64_t>{'j', 'k', 'l', 'm', -1, -1, -1, -1}));
  read_eval(*text, borders, 4, 3, tensors);
  EXPECT_EQ(values(tensors[1]), std::vector<int64_t>(8, -1));
}

TEST_F(DataTest, TheBigramLossIsTheOneCountedByHand) {
  auto train = text_of(write("train", "ababa"));      // a -> b twice, b -> a twice
  auto evaluation = text_of(write("eval", "abbca"));  // ab, bb, bc, ca
  const double expected =
      -(std::log(3.0 / 258) + 2 * std::log(1.0 / 258) + std::log(1.0 / 256)) / 4;
  EXPECT_NEAR(bigram_loss(*train, *evaluation, 4), expected, 1e-12);
}

}  // namespace
}  // namespace tutti
