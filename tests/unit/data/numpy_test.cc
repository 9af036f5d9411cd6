// NumPy's files: every type that is read, every version, and what is refused.
#include <cmath>
#include <cstring>
#include <limits>

#include "base/file.h"
#include "data/images/arrays.h"
#include "unit/data/files_case.h"

namespace tutti {
namespace {

using namespace files_case;  // NOLINT(google-build-using-namespace)

std::string npy(const std::string& type, const std::string& shape, const std::string& values,
                int version = 1, const std::string& order = "False") {
  const std::string header =
      "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': (" + shape + "), }   \n";
  std::string bytes = "\x93NUMPY";
  bytes += {static_cast<char>(version), '\0'};
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i)
    bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + values;
}

template <typename T>
std::string bytes_of(const std::vector<T>& list) {
  return {reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T)};
}

using Numpy = FilesTest;

TEST_F(Numpy, EveryTypeIsReadAsBytesFloatsOrWholeNumbers) {
  const auto read = [&](const std::string& type, const std::string& values) {
    return read_npy(write("a.npy", npy(type, "3,", values)));
  };
  const auto whole = [&](const std::string& type, const std::string& values) {
    return std::get<std::vector<int64_t>>(read(type, values).values);
  };
  const auto real = [&](const std::string& type, const std::string& values) {
    return std::get<std::vector<float>>(read(type, values).values);
  };
  EXPECT_EQ(read("|u1", "\1\2\3").dims, std::vector<int64_t>{3});
  EXPECT_EQ(std::get<std::vector<uint8_t>>(read("|u1", "\1\2\377").values),
            (std::vector<uint8_t>{1, 2, 255}));
  EXPECT_EQ(std::get<std::vector<uint8_t>>(read("|b1", std::string("\1\0\1", 3)).values),
            (std::vector<uint8_t>{1, 0, 1}));
  const std::vector<int64_t> some = {1, -2, 100};
  EXPECT_EQ(whole("|i1", bytes_of<int8_t>({1, -2, 100})), some);
  EXPECT_EQ(whole("<i2", bytes_of<int16_t>({1, -2, 100})), some);
  EXPECT_EQ(whole("<i4", bytes_of<int32_t>({1, -2, 100})), some);
  EXPECT_EQ(whole("<i8", bytes_of<int64_t>({1, -2, 100})), some);
  EXPECT_EQ(whole("<u2", bytes_of<uint16_t>({1, 2, 65535})), (std::vector<int64_t>{1, 2, 65535}));
  EXPECT_EQ(whole("<u4", bytes_of<uint32_t>({1, 2, 4294967295})),
            (std::vector<int64_t>{1, 2, 4294967295}));
  EXPECT_EQ(whole("<u8", bytes_of<uint64_t>({1, 2, 1ULL << 40})),
            (std::vector<int64_t>{1, 2, int64_t{1} << 40}));
  EXPECT_EQ(real("<f4", bytes_of<float>({1.5F, -0.25F, 3e8F})),
            (std::vector<float>{1.5F, -0.25F, 3e8F}));
  EXPECT_EQ(real("<f8", bytes_of<double>({1.5, 0.1, -3})), (std::vector<float>{1.5F, 0.1F, -3}));
}

TEST_F(Numpy, HeadersOfAllThreeVersionsAreRead) {
  for (int version : {1, 2, 3}) {
    const Array array = read_npy(write("a.npy", npy("|u1", "2, 1, 2", "abcd", version)));
    EXPECT_EQ(array.dims, (std::vector<int64_t>{2, 1, 2})) << version;
    EXPECT_EQ(std::get<std::vector<uint8_t>>(array.values),
              (std::vector<uint8_t>{'a', 'b', 'c', 'd'}))
        << version;
  }
}

TEST_F(Numpy, FaultsNameTheFile) {
  const auto said = [&](const std::string& bytes) {
    const std::string path = write("a.npy", bytes);
    const std::string text = fault([&] { read_npy(path); });
    EXPECT_TRUE(text.starts_with(path + ": ")) << text;
    return text.substr(std::min(text.size(), path.size() + 2));
  };
  EXPECT_EQ(said("PK\3\4 an archive of arrays"), "not a .npy file");
  EXPECT_EQ(said("\x93NUMPY"), "not a .npy file");
  EXPECT_EQ(said(npy("|u1", "2, 2", "abcd", 4)), ".npy of version 4");
  EXPECT_EQ(said(npy("|u1", "2, 2", "abcd").substr(0, 40)), "truncated in its header");
  EXPECT_EQ(said(npy("<f4", "2, 2", std::string(16, '\0'), 1, "True")),
            "in Fortran's order; save it by numpy.ascontiguousarray");
  EXPECT_EQ(said(npy("<f4", "2, 2", std::string(15, '\0'))),
            "15 bytes of values where its header says 4 values of 4 bytes: truncated or damaged");
  EXPECT_EQ(said(npy("<f4", "2, 2", std::string(20, '\0'))),
            "20 bytes of values where its header says 4 values of 4 bytes: truncated or damaged");
  EXPECT_NE(
      said(npy("<f8", "9223372036854775807, 9223372036854775807", "")).find("truncated or damaged"),
      std::string::npos);
  EXPECT_EQ(said(npy(">f4", "1,", "abcd")),
            "values of type '>f4'; whole numbers, f4 and f8 (little-endian) are read");
  EXPECT_EQ(said(npy("<f4", "", "abcd")), "a single value, not an array of records");
  EXPECT_EQ(said("\x93NUMPY\1" + std::string("\0\7\0{'x': 1}abcdefg", 18)),
            "its header has no fortran_order");
}

TEST_F(Numpy, AWrittenFileIsReadBack) {
  const std::string path = folder_ + "/w.npy";
  const std::vector<float> list = {1.25F, -3, 1e-30F, 4, 5, 6};
  write_npy(path, {2, 3}, list);
  const Array array = read_npy(path);
  EXPECT_EQ(array.dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::get<std::vector<float>>(array.values), list);
  // NumPy asks for values that start on 64 bytes and for a header that is a Python dictionary.
  const std::string bytes = read_file(path);
  EXPECT_EQ((bytes.size() - list.size() * sizeof(float)) % 64, 0u);
  EXPECT_NE(bytes.find("{'descr': '<f4', 'fortran_order': False, 'shape': (2,3,), }"),
            std::string::npos);
}

Job regression() {
  return job_of(R"(
[model]
kind = "mlp"
inputs = 2
outputs = 1
[loss]
kind = "mse"
[data]
kind = "numpy"
held_out = 0
[train]
eval_batches = 0
)");
}

TEST_F(Numpy, AValueThatIsNotFiniteIsNamedByRecordAndValue) {
  Job job = regression();
  job.data.labels = write("y.npy", npy("<f4", "3,", bytes_of<float>({1, 2, 3})));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  job.data.path = write("x.npy", npy("<f4", "3, 2", bytes_of<float>({1, 2, 3, nan, 5, 6})));
  EXPECT_EQ(fault([&] { open_data(job); }), job.data.path + ": value 1 of record 1 is nan");
  job.data.path = write("x.npy", npy("<f8", "3, 2", bytes_of<double>({1, 2, 3, 4, 1e300, 6})));
  EXPECT_EQ(fault([&] { open_data(job); }), job.data.path + ": value 0 of record 2 is inf");
  job.data.path = write("x.npy", npy("<f8", "3, 2", bytes_of<double>({1, 2, 3, 4, 5, 6})));
  job.data.labels = write("y.npy", npy("<f4", "3,", bytes_of<float>({1, nan, 3})));
  EXPECT_EQ(fault([&] { open_data(job); }), job.data.labels + ": value 0 of record 1 is nan");
}

TEST_F(Numpy, LabelsOfARegressionAreFloatsOfTheModelsWidth) {
  Job job = regression();
  job.model.outputs = 2;
  job.data.path = write("x.npy", npy("|u1", "2, 2", "\1\2\3\4"));
  job.data.labels = write("y.npy", npy("<f8", "2, 2", bytes_of<double>({0.5, -1, 2, 7})));
  const Split split = open_data(job);
  const auto tensors = allocate({{"features", {2, 2}}, {"targets", {2, 2}}});
  const int64_t records[] = {1, 0};
  split.train->read_rows(records, tensors, 0);
  EXPECT_EQ(values<float>(tensors[0]), (std::vector<float>{3, 4, 1, 2}));
  EXPECT_EQ(values<float>(tensors[1]), (std::vector<float>{2, 7, 0.5F, -1}));
  job.data.labels = write("y.npy", npy("<f8", "2,", bytes_of<double>({0.5, -1})));
  EXPECT_EQ(fault([&] { open_data(job); }),
            job.data.labels + ": a label has 1 values where the model wants 2");
}

TEST_F(Numpy, ClassesMustBeWholeNumbersBelowTheirCount) {
  Job job = regression();
  job.loss.kind = "cross-entropy";
  job.model.classes = 3;
  job.data.path = write("x.npy", npy("|u1", "2, 2", "\1\2\3\4"));
  job.data.labels = write("y.npy", npy("<f4", "2,", bytes_of<float>({2, 0})));
  EXPECT_EQ(open_data(job).train->label(0), 2);
  for (const auto& [value, shown] : {std::pair{1.5F, "1.5"}, {-1.0F, "-1"}, {3.0F, "3"}}) {
    job.data.labels = write("y.npy", npy("<f4", "2,", bytes_of<float>({0, value})));
    EXPECT_EQ(fault([&] { open_data(job); }), job.data.labels + ": the class of record 1 is " +
                                                  shown + ", outside of model.classes = 3");
  }
}

TEST_F(Numpy, AnAutoencodersLabelsNeverMakeItsRecordsPadding) {
  Job job = regression();
  job.model.kind = "autoencoder";
  job.data.path = write("x.npy", npy("|u1", "2, 2", "\1\2\3\4"));
  job.data.labels = write("y.npy", npy("<i8", "2,", bytes_of<int64_t>({-1, 5})));
  const Split split = open_data(job);
  const auto tensors = allocate({{"features", {2, 2}}, {"targets", {2}, at::kLong}});
  const int64_t records[] = {0, 1};
  split.train->read_rows(records, tensors, 0);
  EXPECT_EQ(values<int64_t>(tensors[1]), (std::vector<int64_t>{0, 5}));
}

}  // namespace
}  // namespace tutti
