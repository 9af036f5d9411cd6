// IDX files: plain and compressed, and everything that can be wrong with one.
#include <algorithm>

#include "data/core/sources.h"
#include "data/images/arrays.h"
#include "unit/data/files_case.h"

namespace tutti {
namespace {

using namespace files_case;  // NOLINT(google-build-using-namespace)

std::string idx(const std::vector<uint32_t>& dims, const std::string& values, char type = 8) {
  std::string bytes{'\0', '\0', type, static_cast<char>(dims.size())};
  for (uint32_t dim : dims)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dim >> shift & 0xff);
  return bytes + values;
}

std::string counted(int from, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(from + i);
  return bytes;
}

class Idx : public FilesTest {
 protected:
  /// A job over 6 images of 2 x 2 and their labels.
  Job job() const {
    Job job = job_of(R"(
[model]
kind = "mlp"
inputs = 4
classes = 3
[loss]
kind = "cross-entropy"
[data]
kind = "idx"
held_out = 0
[train]
eval_batches = 0
)");
    job.data.path = write("images", idx({6, 2, 2}, counted(100, 24)));
    job.data.labels = write("labels", idx({6}, std::string("\0\1\2\0\1\2", 6)));
    return job;
  }
  static std::string refused(const Job& job) {
    return fault([&] { open_data(job); });
  }
};

TEST_F(Idx, OfBytesIsReadPlainAndCompressed) {
  const std::string file = idx({3, 2, 2}, counted(250, 12));
  for (const std::string& path : {write("plain", file), write("packed.gz", zipped(file))}) {
    const Array array = read_idx(path);
    EXPECT_EQ(array.dims, (std::vector<int64_t>{3, 2, 2}));
    EXPECT_EQ(array.row(), 4);
    EXPECT_EQ(std::get<std::vector<uint8_t>>(array.values),
              (std::vector<uint8_t>{250, 251, 252, 253, 254, 255, 0, 1, 2, 3, 4, 5}));
  }
}

TEST_F(Idx, FilesThatAreNoneNameThemselvesAndTheFault) {
  const auto said = [&](const std::string& bytes) {
    const std::string path = write("file", bytes);
    const std::string text = fault([&] { read_idx(path); });
    EXPECT_TRUE(text.starts_with(path + ": ")) << text;
    return text.substr(std::min(text.size(), path.size() + 2));
  };
  EXPECT_EQ(said("\1\2\3\4 no images at all"), "not an IDX file");
  EXPECT_EQ(said(std::string("\0\0\10", 3)), "not an IDX file");
  EXPECT_EQ(said(idx({1}, "aaaa", 13)),
            "an IDX file of type 0x0d; only unsigned bytes (0x08) are read");
  EXPECT_EQ(said(idx({3, 2}, "abcde")),
            "5 bytes of values where its header says 6: truncated or damaged");
  EXPECT_EQ(said(idx({3, 2}, "abcdefg")),
            "7 bytes of values where its header says 6: truncated or damaged");
  EXPECT_NE(said(idx({3, 2, 2, 2}, "").substr(0, 12)).find("truncated or damaged"),
            std::string::npos);
  // A product of sizes beyond 64 bits is no small number.
  EXPECT_NE(said(idx({0xffffffff, 0xffffffff, 0xffffffff}, "abc")).find("truncated or damaged"),
            std::string::npos);
  const std::string packed =
      zipped(idx({4, 100}, std::string(400, 'x') + counted(0, 100)).substr(0, 412));
  EXPECT_EQ(said(packed.substr(0, packed.size() - 9)), "the compressed file ends early");
  std::string flipped = zipped(idx({200}, counted(0, 200)));
  flipped[flipped.size() - 6] ^= 1;  // of the checksum
  EXPECT_EQ(said(flipped), "the compressed file is damaged");
}

TEST_F(Idx, SeveralCompressedPartsAreOneFile) {
  const std::string first = std::string(5000, 'a'), second = "bcd";
  EXPECT_EQ(read_gz(write("parts.gz", zipped(first) + zipped(second))), first + second);
  const std::string path = write("tail.gz", zipped(first) + "tail");
  EXPECT_EQ(fault([&] { read_gz(path); }), path + ": the compressed file is damaged");
}

TEST_F(Idx, ImagesAndLabelsBecomeRecords) {
  const Split split = open_data(job());
  ASSERT_EQ(split.train->size(), 6);
  const auto tensors = allocate({{"features", {2, 4}}, {"targets", {2}, at::kLong}});
  const int64_t records[] = {5, 1};
  split.train->read_rows(records, tensors, 0);
  EXPECT_EQ(values<float>(tensors[0]),
            (std::vector<float>{120, 121, 122, 123, 104, 105, 106, 107}));
  EXPECT_EQ(values<int64_t>(tensors[1]), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(split.train->label(4), 1);
}

TEST_F(Idx, AFolderWithTheUsualNamesNeedsNoOther) {
  write("set/train-images-idx3-ubyte.gz", zipped(idx({3, 2, 2}, counted(0, 12))));
  write("set/train-labels-idx1-ubyte.gz", zipped(idx({3}, std::string("\2\1\0", 3))));
  write("set/t10k-images-idx3-ubyte", idx({2, 2, 2}, counted(50, 8)));
  write("set/t10k-labels-idx1-ubyte", idx({2}, std::string("\1\1", 2)));
  Job all = job();
  all.data.path = all.data.test = folder_ + "/set";
  all.data.labels.clear();
  const Split split = open_data(all);
  EXPECT_EQ(split.train->size(), 3);
  ASSERT_EQ(split.test->size(), 2);
  EXPECT_EQ(all_features(*split.test, 4), (std::vector<float>{50, 51, 52, 53, 54, 55, 56, 57}));
  EXPECT_EQ(split.train->label(0), 2);
  EXPECT_EQ(split.test->label(0), 1);
}

TEST_F(Idx, LabelsThatDoNotFitAreNamed) {
  Job bad = job();
  bad.data.labels = write("few", idx({5}, "\1\1\1\1\1"));
  EXPECT_EQ(refused(bad),
            bad.data.labels + " has 5 labels but " + bad.data.path + " has 6 records");
  bad.data.labels = write("wrong", idx({6}, "\1\1\1\1\3\1"));
  EXPECT_EQ(refused(bad),
            bad.data.labels + ": the class of record 4 is 3, outside of model.classes = 3");
  bad.data.labels = write("wide", idx({6, 2}, "\1\1\1\1\1\1\1\1\1\1\1\1"));
  EXPECT_EQ(refused(bad), bad.data.labels + ": a label has 2 values where the model wants 1");
  bad.data.labels.clear();
  EXPECT_EQ(refused(bad), bad.data.path + ": it has no labels; name their file as data.labels");
}

TEST_F(Idx, ImagesThatTheModelDoesNotReadAreNamed) {
  Job bad = job();
  bad.model.inputs = 5;
  EXPECT_EQ(refused(bad),
            bad.data.path + ": a record has 4 values, but the model reads 5 (model.inputs)");
  bad.model.kind = "cnn";
  bad.model.image = {1, 3, 3};
  EXPECT_EQ(refused(bad),
            bad.data.path + ": a record has 4 values, but the model reads 9 (model.image)");
  bad.data.path = write("none", idx({0, 2, 2}, ""));
  EXPECT_EQ(refused(bad), bad.data.path + ": it has no records");
}

TEST_F(Idx, AnAutoencoderNeedsNoLabels) {
  Job alone = job();
  alone.model.kind = "autoencoder";
  alone.loss.kind = "mse";
  alone.data.labels.clear();
  const Split split = open_data(alone);
  const auto tensors = allocate({{"features", {1, 4}}, {"targets", {1}, at::kLong}});
  split.train->read(0, tensors, 0);
  EXPECT_EQ(values<int64_t>(tensors[1]), std::vector<int64_t>{0});  // not -1, which is padding
}

}  // namespace
}  // namespace tutti
