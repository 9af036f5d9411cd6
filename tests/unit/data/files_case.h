// What the tests of files share: a folder of the test's own, a job from TOML, faults as texts, and
// the ranks of a DataGroup as threads.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <barrier>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/core/dataset.h"

namespace tutti::files_case {

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "tutti-files-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string folder_;
};

inline Job job_of(const std::string& toml) { return parse_job(toml, "job", {}); }

inline std::string fault(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no fault";
}

inline std::string zipped(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// Calls body(group) for every rank of a group, each on a thread of its own; an exception is a
/// failure of the test.
inline void over_group(int ranks, const std::function<void(const DataGroup&)>& body) {
  std::vector<std::string> cards(static_cast<size_t>(ranks));
  std::barrier meet(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      DataGroup group{rank, ranks, [&, rank](const std::string& mine) {
                        cards[static_cast<size_t>(rank)] = mine;
                        meet.arrive_and_wait();
                        std::vector<std::string> all = cards;
                        meet.arrive_and_wait();
                        return all;
                      }};
      EXPECT_NO_THROW(body(group)) << "rank " << rank << " of " << ranks;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
std::vector<T> values(const at::Tensor& tensor) {
  const T* begin = tensor.const_data_ptr<T>();
  return {begin, begin + tensor.numel()};
}

/// The first tensor of every record, one after the other.
inline std::vector<float> all_features(const Dataset& data, int64_t width) {
  const std::vector<at::Tensor> row = allocate({{"features", {1, width}}});
  std::vector<float> all;
  for (int64_t i = 0; i < data.size(); ++i) {
    data.read(i, row, 0);
    const std::vector<float> one = values<float>(row[0]);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace tutti::files_case
