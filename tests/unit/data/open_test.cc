// The split of the records, folds, and text by way of open_data.
#include <numeric>
#include <set>

#include "data/core/sources.h"
#include "data/text/tokenizer.h"
#include "unit/data/files_case.h"

namespace tutti {
namespace {

using namespace files_case;  // NOLINT(google-build-using-namespace)

TEST(SplitRecords, FoldsHoldEveryRecordOutExactlyOnce) {
  Job job = job_of("[data]\nfolds = 4\n");
  std::vector<int> held(103);
  std::set<size_t> sizes;
  for (int64_t fold = 0; fold < 4; ++fold) {
    job.data.fold = fold;
    const Parts parts = split_records(job, 103, "x");
    EXPECT_EQ(parts.train.size() + parts.held_out.size(), 103u);
    std::vector<bool> here(103);
    for (int64_t record : parts.held_out)
      ++held[static_cast<size_t>(record)], here[static_cast<size_t>(record)] = true;
    for (int64_t record : parts.train) EXPECT_FALSE(here[static_cast<size_t>(record)]) << record;
  }
  EXPECT_EQ(held, std::vector<int>(103, 1));
}

TEST(SplitRecords, AreKeyedByTheSeedAndOtherwiseOneFunction) {
  Job job = job_of("[data]\nheld_out = 0.25\n");
  const Parts parts = split_records(job, 1000, "x");
  EXPECT_GT(parts.held_out.size(), 180u);
  EXPECT_LT(parts.held_out.size(), 320u);
  EXPECT_EQ(split_records(job, 1000, "x").held_out, parts.held_out);
  job.train.seed = 77;
  EXPECT_NE(split_records(job, 1000, "x").held_out, parts.held_out);
  job.data.held_out = 0;
  EXPECT_EQ(split_records(job, 1000, "x").train.size(), 1000u);
}

TEST(SplitRecords, RefusesAPartWithoutRecords) {
  Job job = job_of("[data]\nheld_out = 0.000001\n");
  EXPECT_EQ(fault([&] { split_records(job, 10, "some/file"); }),
            "some/file: data.held_out = 1e-06 of 10 records leaves none for evaluation");
  job.data.folds = 50;
  // not only the fold that would be empty
  for (job.data.fold = 0; job.data.fold < 50; ++job.data.fold)
    EXPECT_EQ(fault([&] { split_records(job, 10, "some/file"); }),
              "some/file: it has 10 records, too few for 50 folds");
  job.data.folds = 0;
  EXPECT_NE(fault([&] { split_records(job, 0, "some/file"); }).find("leaves none for training"),
            std::string::npos);
}

class Text : public FilesTest {
 protected:
  static Job job(const std::string& kind) {
    Job job = job_of("[model]\ncontext = 4\n[data]\nheld_out = 0\n[train]\neval_batches = 0\n");
    job.data.kind = kind;
    return job;
  }
  static std::vector<int64_t> tokens(const Dataset& data, int64_t record) {
    const auto tensors = allocate({{"tokens", {1, 4}, at::kLong}, {"targets", {1, 4}, at::kLong}});
    data.read(record, tensors, 0);
    auto all = values<int64_t>(tensors[0]);
    all.push_back(values<int64_t>(tensors[1]).back());
    return all;
  }
};

TEST_F(Text, OfAJsonlColumnIsReadAsBytes) {
  Job lines = job("jsonl");
  lines.data.columns = {"body: text"};
  lines.data.path =
      write("t.jsonl", "{\"id\": 1, \"body\": \"abcdefgh\"}\n{\"body\": \"ijklm\"}\n");
  const Split split = open_data(lines);
  ASSERT_GE(split.train->size(), 2);
  EXPECT_EQ(tokens(*split.train, 0), (std::vector<int64_t>{'a', 'b', 'c', 'd', 'e'}));
  lines.data.path =
      write("bad.jsonl", "{\"body\": \"abcdefgh\"}\n{\"body\": 7}\n{\"body\": \"ijklmnop\"}\n");
  EXPECT_NE(fault([&] { open_data(lines); }).find(lines.data.path + ":2"), std::string::npos);
  lines.data.bad = BadRecord::kSkip;
  const Split skipped = open_data(lines);
  EXPECT_EQ(skipped.report.skipped, 1);
  ASSERT_EQ(skipped.report.faults.size(), 1u);
  EXPECT_NE(skipped.report.faults[0].find("bad.jsonl:2"), std::string::npos);
}

TEST_F(Text, OfATestFileIsEncodedAsTheTrainingTextWas) {
  Job bytes = job("text");
  bytes.data.path = write("train.txt", "the cat sat on the mat and the cat ate the rat that sat");
  bytes.data.test = write("test.txt", "abcdefghi");
  ASSERT_EQ(open_data(bytes).test->size(), 2);
  EXPECT_EQ(tokens(*open_data(bytes).test, 1), (std::vector<int64_t>{'e', 'f', 'g', 'h', 'i'}));
  bytes.data.test = write("packed.gz", zipped("abcdefghi"));
  EXPECT_EQ(open_data(bytes).test->size(), 2);

  bytes.data.tokenizer = "bpe";
  bytes.model.vocab = 270;
  bytes.data.test = write("test.txt", "the cat and the rat sat on the mat");
  const Split split = open_data(bytes);
  ASSERT_NE(split.tokenizer, nullptr);
  const auto expected = split.tokenizer->encode("the cat and the rat sat on the mat");
  ASSERT_GE(split.test->size(), 1);
  EXPECT_EQ(tokens(*split.test, 0), std::vector<int64_t>(expected.begin(), expected.begin() + 5));
  EXPECT_LT(expected.size(), 34u);  // pairs were merged

  bytes.data.test = folder_ + "/none.txt";
  EXPECT_NE(fault([&] { open_data(bytes); }).find("none.txt"), std::string::npos);
}

TEST_F(Text, OfATokenFileIsReadWithItsTest) {
  Job file = job("tokens");
  file.data.path = folder_ + "/a.tokens";
  file.data.test = folder_ + "/b.tokens";
  file.model.vocab = 300;
  write_tokens(file.data.path, {1, 2, 3, 4, 299, 6, 7, 8, 9}, 300);
  write_tokens(file.data.test, {9, 8, 7, 6, 5}, 300);
  const Split split = open_data(file);
  ASSERT_EQ(split.train->size(), 2);
  EXPECT_EQ(tokens(*split.train, 1), (std::vector<int64_t>{299, 6, 7, 8, 9}));
  ASSERT_EQ(split.test->size(), 1);
  EXPECT_EQ(tokens(*split.test, 0), (std::vector<int64_t>{9, 8, 7, 6, 5}));
  file.model.vocab = 299;
  EXPECT_NE(fault([&] { open_data(file); }).find(file.data.path + ": token 299 at place 4"),
            std::string::npos);
}

TEST_F(Text, GeneratedRecordsHaveNoTestFile) {
  for (const char* kind : {"walk", "points", "clicks"}) {
    Job made = job(kind);
    made.data.test = "some.txt";
    EXPECT_NE(fault([&] { open_data(made); }).find("data.test = \"some.txt\" but data.kind"),
              std::string::npos)
        << kind;
  }
}

}  // namespace
}  // namespace tutti
