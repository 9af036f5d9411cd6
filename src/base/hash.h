// SHA-256 for states, checkpoints and plans; a fast 64-bit hash for keys of draws and
// for hash tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

using Digest = std::array<uint8_t, 32>;

/// Streaming SHA-256 (OpenSSL): add() any number of times, then finish() once. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  /// Integers are added as eight little-endian bytes.
  void add(uint64_t value);
  Digest finish();

 private:
  void* context_;
};

Digest sha256(std::span<const std::byte> bytes);
/// Of each input. Faster than one after the other where the processor can do two at a time.
void sha256_each(std::span<const std::span<const std::byte>> inputs, std::span<Digest> digests);
std::vector<Digest> sha256_each(std::span<const std::span<const std::byte>> inputs);
std::string hex(const Digest& digest);
/// Of what hex() wrote; nothing for any other text.
std::optional<Digest> from_hex(std::string_view text);

/// FNV-1a with a final mix. The same on all machines and in all versions: jobs depend
/// on its values.
uint64_t hash64(std::string_view text);

}  // namespace tutti
