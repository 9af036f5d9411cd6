// How much memory is left, and sizes and rates in words: those that are printed, and those that are
// given.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

/// Bytes that this process could still allocate: what the system and its control groups leave.
size_t available_memory();

/// "512 B", "1.25 MiB", "140.6 GiB": three digits or more, since sizes are printed next to a limit
/// that they exceed by little.
std::string bytes_text(double bytes);
template <std::integral T>
std::string bytes_text(T bytes) {
  return bytes_text(static_cast<double>(bytes));
}

/// "131 GFLOP/s", "4.25 TB/s": three digits, in thousands.
std::string rate_text(double rate, std::string_view unit);

/// "16GiB", "512 MiB", "1.5GB", "1000000". Throws ConfigError.
int64_t parse_bytes(const std::string& text);

}  // namespace tutti
