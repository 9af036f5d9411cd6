// The measured record of algorithms: a table per kind of GPU and version of the library. Where
// there is none for a product, the library's own first choice is taken.
#include "cuda/matmul/lt_choices.h"

namespace tutti {

namespace {

constexpr at::ScalarType kLow = at::kBFloat16, kFull = at::kFloat;
constexpr LtEpilogue kNone = LtEpilogue::kNone, kBias = LtEpilogue::kBias,
                     kGelu = LtEpilogue::kBiasGelu, kGradient = LtEpilogue::kGeluGradient;

// cuBLASLt 13.1, GPT-2 124M. The rows are as `tutti-bench-gpu` prints them (docs/gpu.md); the time
// after "was" is that of the library's first choice.
// clang-format off
const LtChoice kH200[] = {
    // micro-batches of 64
    {{kLow, kFull, true, false, 768, 768, 65536, kNone, false}, {66, 209, 35, 8, 2, 0, 6, 0, 5}},  // 0.1095 ms, was 0.1106
    {{kLow, kFull, true, false, 768, 3072, 65536, kNone, false}, {66, 184, 35, 1, 0, 0, 0, 0, 5}},  // 0.4424 ms, was 0.4647
    {{kLow, kFull, true, false, 2304, 768, 65536, kNone, false}, {66, 20, 35, 6, 2, 0, 3, 0, 5}},  // 0.3555 ms, was 0.3766
    {{kLow, kFull, true, false, 3072, 768, 65536, kNone, false}, {66, 209, 35, 2, 2, 0, 6, 0, 5}},  // 0.4564 ms, was 0.4646
    {{kLow, kFull, true, false, 50304, 768, 65536, kNone, false}, {66, 23, 35, 1, 0, 0, 4, 0, 3}},  // 7.2104 ms, was 7.4172
    {{kLow, kLow, false, false, 65536, 768, 768, kNone, false}, {66, 408, 35, 1, 0, 0, 3, 0, 5}},  // 0.1155 ms, was 0.1369
    {{kLow, kLow, false, false, 65536, 768, 2304, kNone, false}, {66, 408, 35, 1, 0, 0, 3, 0, 5}},  // 0.3434 ms, was 0.3687
    {{kLow, kLow, false, false, 65536, 768, 3072, kNone, false}, {66, 408, 35, 1, 0, 0, 3, 0, 3}},  // 0.4565 ms, was 0.4882
    {{kLow, kLow, false, false, 65536, 768, 50304, kNone, false}, {66, 408, 35, 1, 0, 0, 1, 0, 3}},  // 7.2386 ms, was 7.5615
    {{kLow, kLow, false, false, 65536, 3072, 768, kGradient, false}, {39, 20, 35, 1, 0, 1, 0, 0, 3}},  // 0.5736 ms, was 0.6350
    {{kLow, kLow, false, true, 65536, 768, 768, kBias, true}, {66, 29, 35, 1, 0, 0, 1, 0, 3}},  // 0.1445 ms, was 0.1529
    {{kLow, kLow, false, true, 65536, 768, 3072, kBias, true}, {66, 408, 35, 1, 0, 0, 3, 0, 5}},  // 0.4932 ms, was 0.5091
    {{kLow, kLow, false, true, 65536, 2304, 768, kBias, false}, {66, 29, 35, 1, 0, 0, 1, 0, 3}},  // 0.3340 ms, was 0.3994
    {{kLow, kLow, false, true, 65536, 3072, 768, kGelu, false}, {66, 28, 35, 1, 0, 0, 0, 0, 3}},  // 0.5900 ms, was 0.5926
    {{kLow, kLow, false, true, 65536, 50304, 768, kNone, false}, {66, 201, 35, 1, 0, 0, 2, 0, 5}},  // 7.1922 ms, was 8.8704
    // micro-batches of 32
    {{kLow, kFull, true, false, 768, 768, 32768, kNone, false}, {66, 209, 35, 8, 2, 0, 6, 0, 5}},  // 0.0631 ms, was 0.0647
    {{kLow, kFull, true, false, 768, 3072, 32768, kNone, false}, {66, 184, 35, 1, 0, 0, 2, 0, 5}},  // 0.2184 ms, was 0.2437
    {{kLow, kFull, true, false, 2304, 768, 32768, kNone, false}, {66, 20, 35, 1, 0, 0, 6, 0, 5}},  // 0.1884 ms, was 0.2125
    {{kLow, kFull, true, false, 3072, 768, 32768, kNone, false}, {66, 209, 35, 2, 2, 0, 6, 0, 5}},  // 0.2285 ms, was 0.2438
    {{kLow, kFull, true, false, 50304, 768, 32768, kNone, false}, {66, 21, 35, 1, 0, 0, 0, 0, 5}},  // 3.6525 ms, was 3.7767
    {{kLow, kLow, false, false, 32768, 768, 768, kNone, false}, {66, 408, 35, 1, 0, 0, 3, 0, 5}},  // 0.0589 ms, was 0.0658
    {{kLow, kLow, false, false, 32768, 768, 2304, kNone, false}, {66, 408, 35, 1, 0, 0, 3, 0, 5}},  // 0.1743 ms, was 0.1891
    {{kLow, kLow, false, false, 32768, 768, 3072, kNone, false}, {66, 408, 35, 1, 0, 0, 3, 0, 3}},  // 0.2322 ms, was 0.2457
    {{kLow, kLow, false, false, 32768, 768, 50304, kNone, false}, {66, 408, 35, 1, 0, 0, 1, 0, 3}},  // 3.6601 ms, was 3.7466
    {{kLow, kLow, false, false, 32768, 3072, 768, kGradient, false}, {39, 20, 35, 1, 0, 0, 0, 0, 5}},  // 0.2801 ms, was 0.2965
    {{kLow, kLow, false, true, 32768, 768, 768, kBias, true}, {66, 408, 35, 1, 0, 0, 1, 0, 3}},  // 0.0757 ms, was 0.0792
    {{kLow, kLow, false, true, 32768, 768, 3072, kBias, true}, {66, 408, 35, 1, 0, 0, 3, 0, 3}},  // 0.2484 ms, was 0.2562
    {{kLow, kLow, false, true, 32768, 2304, 768, kBias, false}, {66, 29, 35, 1, 0, 0, 1, 0, 3}},  // 0.1638 ms, was 0.2130
    {{kLow, kLow, false, true, 32768, 3072, 768, kGelu, false}, {66, 28, 35, 1, 0, 0, 0, 0, 3}},  // 0.2780 ms, was 0.3148
    {{kLow, kLow, false, true, 32768, 50304, 768, kNone, false}, {66, 20, 35, 1, 0, 0, 0, 0, 3}},  // 3.7114 ms, was 4.4704
    // micro-batches of 16
    {{kLow, kLow, false, true, 16384, 2304, 768, kBias, false}, {66, 408, 35, 1, 0, 0, 1, 0, 3}},  // 0.0853 ms, was 0.1086
    {{kLow, kLow, false, true, 16384, 768, 768, kBias, true}, {66, 24, 35, 1, 0, 0, 7, 0, 5}},  // 0.0418 ms, was 0.0418
    {{kLow, kLow, false, true, 16384, 3072, 768, kGelu, false}, {66, 28, 35, 1, 0, 0, 0, 0, 3}},  // 0.1434 ms, was 0.1751
    {{kLow, kLow, false, true, 16384, 768, 3072, kBias, true}, {66, 24, 35, 1, 0, 0, 7, 0, 5}},  // 0.1151 ms, was 0.1151
    {{kLow, kLow, false, false, 16384, 768, 2304, kNone, false}, {66, 20, 35, 1, 0, 0, 1, 0, 3}},  // 0.0842 ms, was 0.0953
    {{kLow, kLow, false, false, 16384, 768, 768, kNone, false}, {66, 20, 35, 1, 0, 0, 1, 0, 5}},  // 0.0353 ms, was 0.0394
    {{kLow, kLow, false, false, 16384, 768, 3072, kNone, false}, {66, 20, 35, 1, 0, 0, 0, 0, 3}},  // 0.1118 ms, was 0.1234
    {{kLow, kLow, false, false, 16384, 3072, 768, kGradient, false}, {39, 20, 35, 1, 0, 0, 0, 0, 5}},  // 0.1450 ms, was 0.1530
    {{kLow, kFull, true, false, 2304, 768, 16384, kNone, false}, {66, 20, 35, 1, 0, 0, 2, 0, 5}},  // 0.0845 ms, was 0.0942
    {{kLow, kFull, true, false, 768, 768, 16384, kNone, false}, {66, 29, 35, 4, 2, 0, 1, 0, 3}},  // 0.0360 ms, was 0.0369
    {{kLow, kFull, true, false, 3072, 768, 16384, kNone, false}, {66, 29, 35, 1, 0, 0, 3, 0, 9}},  // 0.1106 ms, was 0.1131
    {{kLow, kFull, true, false, 768, 3072, 16384, kNone, false}, {66, 184, 35, 1, 0, 0, 0, 0, 5}},  // 0.1056 ms, was 0.1265
    {{kLow, kLow, false, true, 16384, 50304, 768, kNone, false}, {66, 201, 35, 1, 0, 0, 2, 0, 5}},  // 1.7121 ms, was 2.0453
    {{kLow, kLow, false, false, 16384, 768, 50304, kNone, false}, {66, 23, 35, 1, 0, 0, 5, 0, 5}},  // 1.8164 ms, was 1.9011
    {{kLow, kFull, true, false, 50304, 768, 16384, kNone, false}, {66, 20, 35, 1, 0, 0, 3, 0, 5}},  // 1.8084 ms, was 1.8439
    // micro-batches of 8
    {{kLow, kLow, false, true, 8192, 2304, 768, kBias, false}, {66, 20, 35, 1, 0, 0, 3, 0, 5}},  // 0.0507 ms, was 0.0612
    {{kLow, kLow, false, true, 8192, 768, 768, kBias, true}, {66, 495, 35, 1, 0, 0, 5, 0, 5}},  // 0.0236 ms, was 0.0244
    {{kLow, kLow, false, true, 8192, 3072, 768, kGelu, false}, {66, 28, 35, 1, 0, 0, 0, 0, 5}},  // 0.0794 ms, was 0.0807
    {{kLow, kLow, false, true, 8192, 768, 3072, kBias, true}, {66, 31, 35, 1, 0, 0, 7, 0, 5}},  // 0.0588 ms, was 0.0588
    {{kLow, kLow, false, false, 8192, 768, 2304, kNone, false}, {66, 31, 35, 1, 0, 0, 4, 0, 5}},  // 0.0421 ms, was 0.0430
    {{kLow, kLow, false, false, 8192, 768, 768, kNone, false}, {66, 20, 35, 1, 0, 0, 2, 0, 5}},  // 0.0177 ms, was 0.0187
    {{kLow, kLow, false, false, 8192, 768, 3072, kNone, false}, {66, 31, 35, 1, 0, 0, 6, 0, 5}},  // 0.0525 ms, was 0.0544
    {{kLow, kLow, false, false, 8192, 3072, 768, kGradient, false}, {39, 20, 35, 1, 0, 0, 0, 0, 5}},  // 0.0785 ms, was 0.0836
    {{kLow, kFull, true, false, 2304, 768, 8192, kNone, false}, {66, 20, 35, 1, 0, 0, 6, 0, 5}},  // 0.0444 ms, was 0.0452
    {{kLow, kFull, true, false, 768, 768, 8192, kNone, false}, {66, 27, 35, 1, 0, 0, 2, 0, 9}},  // 0.0196 ms, was 0.0196
    {{kLow, kFull, true, false, 3072, 768, 8192, kNone, false}, {66, 29, 35, 1, 0, 0, 3, 0, 9}},  // 0.0558 ms, was 0.0558
    {{kLow, kFull, true, false, 768, 3072, 8192, kNone, false}, {66, 184, 35, 1, 0, 0, 4, 0, 5}},  // 0.0537 ms, was 0.0564
    {{kLow, kLow, false, true, 8192, 50304, 768, kNone, false}, {66, 201, 35, 1, 0, 0, 2, 0, 5}},  // 0.8604 ms, was 1.0957
    {{kLow, kLow, false, false, 8192, 768, 50304, kNone, false}, {66, 20, 35, 1, 0, 0, 1, 0, 3}},  // 0.9103 ms, was 0.9515
    {{kLow, kFull, true, false, 50304, 768, 8192, kNone, false}, {66, 20, 35, 1, 0, 0, 3, 0, 5}},  // 0.9116 ms, was 0.9396
};
// clang-format on

}  // namespace

std::span<const LtChoice> lt_choices(std::string_view gpu, size_t library) {
  if (gpu == "NVIDIA H200" && library == 130100) return kH200;
  return {};
}

}  // namespace tutti
