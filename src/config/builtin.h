// The files of jobs/, embedded in the binary by cmake/embed_jobs.cmake.
#pragma once

#include <span>
#include <string_view>

namespace tutti {

struct BuiltinFile {
  std::string_view name, text;
};

/// In the order of their names.
std::span<const BuiltinFile> builtin_files();

}  // namespace tutti
