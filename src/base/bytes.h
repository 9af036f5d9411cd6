// How much memory is left, and sizes in words.
#pragma once

#include <cstddef>
#include <string>

namespace tutti {

/// Bytes that this process could still allocate: what the system and its control groups leave.
size_t available_memory();

/// "512 B", "1.5 MiB", "2 GiB": at most three digits, in powers of 1024.
std::string bytes_text(double bytes);

}  // namespace tutti
