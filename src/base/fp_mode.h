// Flush-to-zero has one value on every thread that computes, communication threads too: denormals
// are flushed. It is set first thing on each thread and checked, because a library may change it
// without our knowing.
#pragma once

#include <immintrin.h>

namespace tutti {

inline constexpr unsigned kFlushDenormals = 0x8040;  // FTZ | DAZ

inline void set_fp_mode() { _mm_setcsr(_mm_getcsr() | kFlushDenormals); }
inline bool fp_mode_is_set() { return (_mm_getcsr() & kFlushDenormals) == kFlushDenormals; }

}  // namespace tutti
