// The event file byte by byte: this reader knows the format from TensorFlow's documentation, not
// from our writer. The real tensorboard package reads one in tests/integration/tensorboard_check.
#include "observe/tensorboard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace tutti {
namespace {

using nlohmann::json;

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  std::map<std::string, float> scalars;
};

/// Takes bytes off the front; a test fails when there are too few.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  std::string_view take(size_t n) {
    if (n > bytes_.size()) throw Error("the record ends too early");
    const auto part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }
  template <typename T>
  T fixed() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }
  std::string_view framed() { return take(varint()); }

 private:
  std::string_view bytes_;
};

/// One bit at a time, as the polynomial says.
uint32_t slow_masked_crc(std::string_view bytes) {
  uint32_t crc = 0xffffffffU;
  for (char c : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((crc ^ static_cast<uint8_t>(c) >> bit) & 1) != 0;
      crc = crc >> 1 ^ (one ? 0x82f63b78U : 0);
    }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

Event parse_event(std::string_view bytes) {
  Event event;
  for (Bytes in(bytes); !in.empty();) {
    switch (in.varint()) {
      case 1 << 3 | 1:
        event.wall_time = in.fixed<double>();
        break;
      case 2 << 3 | 0:
        event.step = static_cast<int64_t>(in.varint());
        break;
      case 3 << 3 | 2:
        event.version = in.framed();
        break;
      case 5 << 3 | 2:
        for (Bytes summary(in.framed()); !summary.empty();) {
          EXPECT_EQ(summary.varint(), 1U << 3 | 2);
          Bytes value(summary.framed());
          EXPECT_EQ(value.varint(), 1U << 3 | 2);
          const std::string tag(value.framed());
          EXPECT_EQ(value.varint(), 2U << 3 | 5);
          EXPECT_TRUE(event.scalars.emplace(tag, value.fixed<float>()).second) << tag << " twice";
          EXPECT_TRUE(value.empty());
        }
        break;
      default:
        ADD_FAILURE() << "an unknown field";
        return event;
    }
  }
  return event;
}

std::vector<Event> parse_file(const std::string& bytes) {
  std::vector<Event> events;
  for (Bytes in(bytes); !in.empty();) {
    const auto length = in.take(8);
    EXPECT_EQ(in.fixed<uint32_t>(), slow_masked_crc(length));
    const auto record = in.take(Bytes(length).fixed<uint64_t>());
    EXPECT_EQ(in.fixed<uint32_t>(), slow_masked_crc(record));
    events.push_back(parse_event(record));
  }
  return events;
}

class TensorBoardFile : public ::testing::Test {
 protected:
  TensorBoardFile()
      : root_(std::filesystem::temp_directory_path() /
              ("tutti_tensorboard_" + std::to_string(getpid()))) {}
  ~TensorBoardFile() override { std::filesystem::remove_all(root_); }
  std::vector<std::filesystem::path> files() const {
    return {std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator()};
  }
  // neither is there yet
  const std::filesystem::path root_, folder_ = root_ / "run" / "tensorboard";
};

TEST(Crc32c, OfKnownBytes) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);  // the same
}

TEST_F(TensorBoardFile, HoldsEveryNumberOfStepEvalAndTestEvents) {
  const double before =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto sink = open_tensorboard(folder_.string());
  sink->write({{"event", "start"}, {"steps", 10}});
  sink->write({{"event", "step"},
               {"step", 1},
               {"loss", 5.5},
               {"lr", 1e-3},
               {"gradient_norm", 2},
               {"stop", false}});
  sink->write({{"event", "step"}, {"step", 300}, {"loss", std::nan("")}});
  sink->write({{"event", "eval"},
               {"step", 300},
               {"held_out_loss", 4.25},
               {"baseline", {{"name", "byte bigram"}, {"loss", 2.5}}},
               {"metrics",
                {{"loss", 4.25},
                 {"accuracy", 0.5},
                 {"auc", nullptr},
                 {"per_class", {{{"f1", 1}}}},
                 {"confusion", {{1}}}}}});
  sink->write({{"event", "test"},
               {"step", int64_t{1} << 40},
               {"metrics", {{"loss", 4.5}, {"mse", 0.125}}},
               {"classes", {"a"}}});
  sink->write({{"event", "end"}, {"step", 300}, {"seconds", 1.0}});

  // Written at once: the sink is still open.
  ASSERT_EQ(files().size(), 1u);
  const std::string name = files()[0].filename();
  EXPECT_EQ(name.substr(0, 20), "events.out.tfevents.");
  EXPECT_EQ(name.substr(30), ".tutti");
  const auto events = parse_file(read_file(files()[0]));
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[0].scalars.empty());
  for (const Event& event : events) EXPECT_NEAR(event.wall_time, before, 60);
  using Scalars = std::map<std::string, float>;
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].scalars,
            (Scalars{{"train/loss", 5.5F}, {"train/lr", 1e-3F}, {"train/gradient_norm", 2}}));
  EXPECT_EQ(events[2].step, 300);
  EXPECT_TRUE(std::isnan(events[2].scalars.at("train/loss")));
  EXPECT_EQ(events[3].scalars, (Scalars{{"held_out/loss", 4.25F},
                                        {"held_out/accuracy", 0.5F},
                                        {"held_out/baseline", 2.5F}}));
  EXPECT_EQ(events[4].step, int64_t{1} << 40);
  EXPECT_EQ(events[4].scalars, (Scalars{{"test/loss", 4.5F}, {"test/mse", 0.125F}}));
}

TEST_F(TensorBoardFile, IsANewOneForEveryPartOfARun) {
  open_tensorboard(folder_.string())->write({{"event", "step"}, {"step", 1}, {"loss", 1.0}});
  open_tensorboard(folder_.string())->write({{"event", "step"}, {"step", 2}, {"loss", 2.0}});
  ASSERT_EQ(files().size(), 2u);
  for (const auto& file : files()) EXPECT_EQ(parse_file(read_file(file)).size(), 2u);
}

TEST_F(TensorBoardFile, ThatCannotBeMadeIsAnErrorWithItsName) {
  std::filesystem::create_directories(folder_);
  write_file_atomic((folder_ / "taken").string(), "x");
  try {
    open_tensorboard((folder_ / "taken").string());
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("taken"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tutti
