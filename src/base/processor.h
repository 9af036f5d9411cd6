// What the processor can run, in the levels that the *.simd.cc files are compiled for.
#pragma once

namespace tutti {

/// x86-64-v3, as far as its instructions are used.
inline bool has_avx2() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("bmi2");
  return has;
#else
  return false;
#endif
}

/// x86-64-v4.
inline bool has_avx512() {
#if defined(__x86_64__)
  static const bool has = has_avx2() && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
#else
  return false;
#endif
}

}  // namespace tutti
