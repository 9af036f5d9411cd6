// The code paths: what the *.simd.cc files are compiled for, each in a namespace of its own
// (cmake/folders.cmake). All give the same bits; processor.h says which this processor can run. No
// inline function is in here: it could be compiled for what the processor lacks.
#pragma once

namespace tutti {

/// The fastest first. kFma is the portable code for processors with fused multiply-adds, kPortable
/// for any.
enum class CodePath { kAvx512, kAvx2, kFma, kPortable };

// TUTTI_ON_EACH_PATH(declare) repeats declarations; TUTTI_TABLE_OF(name) and TUTTI_TABLE(of) are the
// initialiser of an array with the path's number as its index.
#if defined(__x86_64__)
inline constexpr CodePath kCodePaths[] = {CodePath::kAvx512, CodePath::kAvx2, CodePath::kFma,
                                          CodePath::kPortable};
#define TUTTI_ON_EACH_PATH(declare) \
  declare(isa_avx512) declare(isa_avx2) declare(isa_fma) declare(isa_portable)
#define TUTTI_TABLE(of) \
  { of(isa_avx512), of(isa_avx2), of(isa_fma), of(isa_portable) }
#define TUTTI_TABLE_OF(name) \
  { isa_avx512::name, isa_avx2::name, isa_fma::name, isa_portable::name }
#else
inline constexpr CodePath kCodePaths[] = {CodePath::kPortable};
#define TUTTI_ON_EACH_PATH(declare) declare(isa_portable)
#define TUTTI_TABLE(of) \
  { of(isa_portable), of(isa_portable), of(isa_portable), of(isa_portable) }
#define TUTTI_TABLE_OF(name) \
  { isa_portable::name, isa_portable::name, isa_portable::name, isa_portable::name }
#endif

}  // namespace tutti
