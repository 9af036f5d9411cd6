// Writes TensorBoard's format by hand. A record of the file is
//   uint64  length
//   uint32  masked CRC of the length
//   bytes   the Event
//   uint32  masked CRC of the bytes
// and an Event, in protocol-buffer wire format, has these of its fields:
//   1  double wall_time
//   2  int64 step
//   3  string file_version
//   5  Summary { 1 Value { 1 string tag, 2 float value } }
// All of it is little-endian. The first record holds the file's version alone.
#include "observe/tensorboard.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace tutti {

namespace {

using nlohmann::json;
using Scalars = std::vector<std::pair<std::string, float>>;

// How a field's value is encoded; part of its key.
enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0x82f63b78U : c >> 1;
    table[i] = c;
  }
  return table;
}

/// TensorFlow masks the CRCs that it stores, since a CRC over data that contains CRCs is a
/// weak one.
uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; }

template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// Seven bits per byte, the lowest first; the eighth bit says that more follow.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

std::string key(int field, Wire wire) { return varint(static_cast<uint64_t>(field) << 3 | wire); }

/// A field of bytes: a string, or a message inside of a message.
std::string framed(int field, const std::string& bytes) {
  return key(field, kBytes) + varint(bytes.size()) + bytes;
}

std::string record(const std::string& event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  return length + raw(masked(crc32c(length))) + event + raw(masked(crc32c(event)));
}

std::string now() {
  const double seconds =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return key(1, kFixed64) + raw(seconds);
}

/// An Event with one Value per scalar.
std::string event_of(int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += framed(1, framed(1, tag) + key(2, kFixed32) + raw(value));
  return now() + key(2, kVarint) + varint(static_cast<uint64_t>(step)) + framed(5, summary);
}

/// Adds the numbers of an object as scalars under `group`. A field "held_out_loss" is the group's
/// loss; a tag that is there already is not added again.
void take(const json& fields, const std::string& group, Scalars& to) {
  for (const auto& [name, value] : fields.items()) {
    if (!value.is_number() || name == "step") continue;
    std::string tag = group + "/" + (name == "held_out_loss" ? "loss" : name);
    const bool known =
        std::any_of(to.begin(), to.end(), [&](const auto& s) { return s.first == tag; });
    if (!known) to.emplace_back(std::move(tag), static_cast<float>(value.get<double>()));
  }
}

class TensorBoard final : public EventSink {
 public:
  TensorBoard(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {
    append(record(now() + framed(3, "brain.Event:2")));
  }

  void write(const json& e) override {
    const std::string kind = e.at("event");

    // TensorBoard shows tags with the same part before the slash together.
    const std::string group = kind == "step"   ? "train"
                              : kind == "eval" ? "held_out"
                              : kind == "test" ? "test"
                                               : "";
    if (group.empty()) return;
    Scalars scalars;
    take(e, group, scalars);
    if (const auto metrics = e.find("metrics"); metrics != e.end()) take(*metrics, group, scalars);
    if (const auto baseline = e.find("baseline"); baseline != e.end())
      take({{"baseline", baseline->at("loss")}}, group, scalars);
    if (!scalars.empty()) append(record(event_of(e.at("step"), scalars)));
  }

 private:
  /// One write per record, so that a killed process leaves whole records.
  void append(const std::string& bytes) {
    const std::lock_guard lock(mutex_);
    write_all(fd_.get(), std::as_bytes(std::span(bytes)), path_);
  }

  std::mutex mutex_;
  Fd fd_;
  std::string path_;
};

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~0U;
  for (char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

std::unique_ptr<EventSink> open_tensorboard(const std::string& folder) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) throw Error(fmt::format("cannot make {}: {}", folder, fault.message()));
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  // A run that is resumed gets a file of its own; TensorBoard reads files in the order of their
  // names. If there already is one of this second, the next second is taken.
  for (;; ++seconds) {
    const std::string path =
        fmt::format("{}/events.out.tfevents.{:010}.tutti", folder, seconds.count());
    Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (fd) return std::make_unique<TensorBoard>(std::move(fd), path);
    if (errno != EEXIST) throw_errno("open", path);
  }
}

}  // namespace tutti
