// The file as another tool would read it: byte by byte, with a JSON reader that accepts the grammar
// of RFC 8259 and no more.
#include "state/safetensors.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "fixture.h"

namespace {

/// What a test wants to know of each sync_file_range; it returns the error to fail with, or 0.
std::function<int(int64_t from, int64_t bytes, unsigned flags)> on_sync;

}  // namespace

/// Stands in for the C library's.
extern "C" int sync_file_range(int fd, int64_t from, int64_t bytes, unsigned flags) {
  errno = on_sync ? on_sync(from, bytes, flags) : 0;
  if (errno != 0) return -1;
  return static_cast<int>(::syscall(SYS_sync_file_range, fd, from, bytes, flags));
}

namespace tutti {
namespace {

/// Consumes values of JSON text; `ok` stays true only for text of the strict grammar without
/// duplicate keys.
class StrictJson {
 public:
  explicit StrictJson(const std::string& text) : at_(text.data()), end_(text.data() + text.size()) {
    value();
    space();
    ok = ok && at_ == end_;
  }
  bool ok = true;

 private:
  void value() {
    space();
    if (take('{')) {
      std::set<std::string> keys;
      members('}', [&] {
        space();
        const char* begin = at_;
        string();
        ok = ok && keys.emplace(begin, at_).second;
        space();
        expect(':');
        value();
      });
    } else if (take('[')) {
      members(']', [&] { value(); });
    } else if (at_ < end_ && *at_ == '"') {
      string();
    } else {
      number();
    }
  }
  template <typename Member>
  void members(char close, Member member) {
    space();
    if (take(close)) return;
    do {
      member();
      space();
    } while (ok && take(','));
    expect(close);
  }
  void string() {
    expect('"');
    while (ok && at_ < end_ && *at_ != '"')
      ok = static_cast<unsigned char>(*at_) >= 0x20 && *at_++ != '\\';  // no escapes here
    expect('"');
  }
  void number() {
    const char* begin = at_;
    while (at_ < end_ && '0' <= *at_ && *at_ <= '9') ++at_;
    ok = ok && at_ > begin && (at_ - begin == 1 || *begin != '0');
  }
  void space() {
    while (at_ < end_ && std::strchr(" \t\r\n", *at_) != nullptr) ++at_;
  }
  bool take(char c) {
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) { ok = take(c) && ok; }
  const char *at_, *end_;
};

TEST_F(CheckpointTest, TheFileIsWhatTheFormatSays) {
  OwnedState saved(1, 0.5f);
  const std::string path = folder_ + "/x.safetensors";
  const char* names[] = {"embed.token.weight", "embed.token.weight@m", "head.bias", "head.bias@m"};
  std::vector<TensorShape> tensors;
  for (size_t i = 0; i < 4; ++i) tensors.push_back({names[i], saved.state.entries[i].dims});
  write_safetensors(path, tensors,
                    [&](size_t t) { return std::span<const float>(*saved.storage[t]); });
  const std::string bytes = slurp(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  ASSERT_LT(length, bytes.size());
  EXPECT_EQ(length % 8, 0u);
  const std::string text = bytes.substr(8, length);
  EXPECT_EQ(text.front(), '{');
  EXPECT_TRUE(StrictJson(text).ok) << text;
  const auto header = nlohmann::json::parse(text);
  ASSERT_EQ(header.size(), 4u);
  uint64_t expected_begin = 0;
  for (size_t i = 0; i < 4; ++i) {
    const auto& tensor = header.at(names[i]);
    EXPECT_EQ(tensor.at("dtype"), "F32");
    EXPECT_EQ(tensor.at("shape"), nlohmann::json(saved.state.entries[i].dims));
    const uint64_t begin = tensor.at("data_offsets")[0], end = tensor.at("data_offsets")[1];
    EXPECT_EQ(begin, expected_begin);
    ASSERT_EQ(end - begin, saved.storage[i]->size() * sizeof(float));
    EXPECT_EQ(std::memcmp(bytes.data() + 8 + length + begin, saved.storage[i]->data(), end - begin),
              0);
    expected_begin = end;
  }
  EXPECT_EQ(8 + length + expected_begin, bytes.size());
}

/// A file of about 200 MiB, all of it the same few values. Returns its size.
int64_t write_large(const std::string& path, const std::vector<float>& values) {
  std::vector<TensorShape> tensors;
  for (int e = 0; e < 25; ++e)
    tensors.push_back({std::to_string(e), {static_cast<int64_t>(values.size())}});
  write_safetensors(path, tensors, [&values](size_t) { return std::span(values); });
  return static_cast<int64_t>(std::filesystem::file_size(path));
}

class LargeFileTest : public CheckpointTest {
 protected:
  void TearDown() override {
    on_sync = nullptr;
    CheckpointTest::TearDown();
  }
  const std::vector<float> values_ = std::vector<float>(size_t{2} << 20, 1.5f);
};

TEST_F(LargeFileTest, ReachesTheDiskPieceByPieceWhileItIsWritten) {
  int64_t begun = 0, waited = 0, most = 0;
  on_sync = [&](int64_t from, int64_t bytes, unsigned flags) {
    int64_t& reached = (flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0 ? waited : begun;
    EXPECT_EQ(from, reached) << "none is left out";
    reached = from + bytes;
    most = std::max(most, begun - waited);
    return 0;
  };
  const int64_t bytes = write_large(folder_ + "/x.safetensors", values_);
  EXPECT_GT(bytes, int64_t{200} << 20);
  EXPECT_LE(most, int64_t{66} << 20) << "of memory that is to be written out";
  EXPECT_LE(bytes - waited, int64_t{96} << 20) << "is left for the sync at the end";
}

TEST_F(LargeFileTest, ThatTheDiskDoesNotTakeIsAnErrorWithItsPath) {
  on_sync = [](int64_t, int64_t, unsigned) { return EIO; };
  const std::string path = folder_ + "/x.safetensors";
  try {
    write_large(path, values_);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), "cannot sync " + path + ": Input/output error");
  }
}

TEST(StrictJson, RefusesWhatIsNotJson) {
  for (const char* good : {"{}", "{\"a\":[1,20],\"b\":{\"c\":\"d\"}}  ", "[]"})
    EXPECT_TRUE(StrictJson(good).ok) << good;
  for (const char* bad : {"", "{", "{\"a\":1,}", "{a:1}", "[1 2]", "{\"a\":1}{", "[01]",
                          "{\"a\":1,\"a\":2}", "[1,]"}) {
    EXPECT_FALSE(StrictJson(bad).ok) << bad;
  }
}

}  // namespace
}  // namespace tutti
