// What the processor can run, in the levels that the *.simd.cc files are compiled for.
#pragma once

#include <string>
#include <vector>

#include "base/code_path.h"

namespace tutti {

inline bool can_run(CodePath path) {
#if defined(__x86_64__)
  static const bool fma = __builtin_cpu_supports("avx") && __builtin_cpu_supports("fma");
  // x86-64-v3 and v4, as far as their instructions are used.
  static const bool avx2 = fma && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  static const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  switch (path) {
    case CodePath::kAvx512:
      return avx512;
    case CodePath::kAvx2:
      return avx2;
    case CodePath::kFma:
      return fma;
    case CodePath::kPortable:
      break;
  }
  return true;
#else
  return path == CodePath::kPortable;
#endif
}

/// The fastest first.
inline std::vector<CodePath> runnable_paths() {
  std::vector<CodePath> paths;
  for (const CodePath path : kCodePaths)
    if (can_run(path)) paths.push_back(path);
  return paths;
}
inline CodePath fastest_path() {
  static const CodePath fastest = runnable_paths().front();
  return fastest;
}
inline std::string name_of(CodePath path) {
  constexpr const char* kNames[] = {"avx512", "avx2", "fma", "portable"};
  return kNames[static_cast<int>(path)];
}

/// What a TUTTI_TABLE has for a path.
template <typename T, int n>
const T& on_path(const T (&table)[n], CodePath path = fastest_path()) {
  static_assert(n == 4);
  return table[static_cast<int>(path)];
}

}  // namespace tutti
