// Flush-to-zero has one value on every thread that computes, communication threads too: denormals
// are flushed. It is set first thing on each thread and checked, because a library may change it
// without our knowing.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>

namespace tutti {

#if defined(__x86_64__)
inline constexpr uint64_t kFlushDenormals = 0x8040;  // MXCSR: FTZ | DAZ
inline uint64_t fp_control() { return _mm_getcsr(); }
inline void set_fp_control(uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#else
inline constexpr uint64_t kFlushDenormals = uint64_t{1} << 24;  // FPCR: FZ
inline uint64_t fp_control() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
inline void set_fp_control(uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#endif

inline void set_fp_mode() { set_fp_control(fp_control() | kFlushDenormals); }
inline bool fp_mode_is_set() { return (fp_control() & kFlushDenormals) == kFlushDenormals; }

}  // namespace tutti
