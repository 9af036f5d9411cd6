// The keys of a job whose values are a closed set, each as an enum with its names. To add a value:
// its enumerator and its name here, and the code that does it. Parts (models, losses, formats,
// optimizers, schedules, metrics, transports) are named by strings instead, which are looked up in
// the tables of config/job_parts.h and of the folders that implement them.
#pragma once

#include <cstdint>

#include "config/enum_names.h"

namespace tutti {

// ---- [model]

/// kGelu: x Phi(x). kGeluTanh: the approximation of GPT-2. kLeakyRelu: slope 0.01 below zero.
/// kSwiglu is a gated layer, a kernel of its own.
enum class Activation {
  kGelu,
  kGeluTanh,
  kRelu,
  kSilu,
  kTanh,
  kSigmoid,
  kLeakyRelu,
  kElu,
  kSwiglu
};
template <>
inline constexpr EnumName<Activation> kNamesOf<Activation>[] = {
    {Activation::kGelu, "gelu"},
    {Activation::kGeluTanh, "gelu-tanh"},
    {Activation::kRelu, "relu"},
    {Activation::kSilu, "silu"},
    {Activation::kTanh, "tanh"},
    {Activation::kSigmoid, "sigmoid"},
    {Activation::kLeakyRelu, "leaky-relu"},
    {Activation::kElu, "elu"},
    {Activation::kSwiglu, "swiglu"}};

/// kAuto: what suits the model; a resolved job has none.
enum class NormKind { kAuto, kLayer, kRms, kBatch, kGroup, kNone };
template <>
inline constexpr EnumName<NormKind> kNamesOf<NormKind>[] = {
    {NormKind::kAuto, "auto"},   {NormKind::kLayer, "layer"}, {NormKind::kRms, "rms"},
    {NormKind::kBatch, "batch"}, {NormKind::kGroup, "group"}, {NormKind::kNone, "none"}};

enum class Positions { kLearned, kRotary };
template <>
inline constexpr EnumName<Positions> kNamesOf<Positions>[] = {{Positions::kLearned, "learned"},
                                                              {Positions::kRotary, "rotary"}};

enum class InitKind {
  kNormal,
  kTruncatedNormal,
  kGlorotUniform,
  kGlorotNormal,
  kHeUniform,
  kHeNormal,
  kOrthogonal,  ///< rows, or columns if fewer, of a matrix are orthonormal
  kZeros,
  kOnes,
  kConstant,
  kGiven  ///< from a file, or a TorchScript module's own; no job says it
};
template <>
inline constexpr EnumName<InitKind> kNamesOf<InitKind>[] = {
    {InitKind::kNormal, "normal"},
    {InitKind::kTruncatedNormal, "truncated-normal"},
    {InitKind::kGlorotUniform, "glorot-uniform"},
    {InitKind::kGlorotNormal, "glorot-normal"},
    {InitKind::kHeUniform, "he-uniform"},
    {InitKind::kHeNormal, "he-normal"},
    {InitKind::kOrthogonal, "orthogonal"},
    {InitKind::kZeros, "zeros"},
    {InitKind::kOnes, "ones"},
    {InitKind::kConstant, "constant"}};

enum class Pool { kMax, kAverage };
template <>
inline constexpr EnumName<Pool> kNamesOf<Pool>[] = {{Pool::kMax, "max"},
                                                    {Pool::kAverage, "average"}};

// ---- [data]

/// kUnit: by 255. Also of a table's column, which has no kUnit.
enum class ValueScale { kNone, kUnit, kStandardise, kMinMax };
template <>
inline constexpr EnumName<ValueScale> kNamesOf<ValueScale>[] = {
    {ValueScale::kNone, "none"},
    {ValueScale::kUnit, "unit"},
    {ValueScale::kStandardise, "standardise"},
    {ValueScale::kMinMax, "min-max"}};

enum class MissingValue { kFail, kMean, kZero, kDrop };
template <>
inline constexpr EnumName<MissingValue> kNamesOf<MissingValue>[] = {{MissingValue::kFail, "fail"},
                                                                    {MissingValue::kMean, "mean"},
                                                                    {MissingValue::kZero, "zero"},
                                                                    {MissingValue::kDrop, "drop"}};

enum class Outliers { kKeep, kClip, kDrop };
template <>
inline constexpr EnumName<Outliers> kNamesOf<Outliers>[] = {
    {Outliers::kKeep, "keep"}, {Outliers::kClip, "clip"}, {Outliers::kDrop, "drop"}};

enum class BadRecord { kFail, kSkip };
template <>
inline constexpr EnumName<BadRecord> kNamesOf<BadRecord>[] = {{BadRecord::kFail, "fail"},
                                                              {BadRecord::kSkip, "skip"}};

enum class Resample { kNone, kBalanced, kClasses, kColumn };
template <>
inline constexpr EnumName<Resample> kNamesOf<Resample>[] = {{Resample::kNone, "none"},
                                                            {Resample::kBalanced, "balanced"},
                                                            {Resample::kClasses, "classes"},
                                                            {Resample::kColumn, "column"}};

// ---- [train]

enum class ClipBy : int32_t { kNorm, kUnit, kValue };
template <>
inline constexpr EnumName<ClipBy> kNamesOf<ClipBy>[] = {
    {ClipBy::kNorm, "norm"}, {ClipBy::kUnit, "unit"}, {ClipBy::kValue, "value"}};

/// What the held-out loss is compared with. kAuto: what the data offers; a resolved job has none.
enum class BaselineKind { kAuto, kBigram, kTruth, kNone };
template <>
inline constexpr EnumName<BaselineKind> kNamesOf<BaselineKind>[] = {
    {BaselineKind::kAuto, "auto"},
    {BaselineKind::kBigram, "bigram"},
    {BaselineKind::kTruth, "truth"},
    {BaselineKind::kNone, "none"}};

// ---- [numerics]; what is kAuto is resolved once

enum class DeviceKind { kAuto, kCpu, kCuda };
template <>
inline constexpr EnumName<DeviceKind> kNamesOf<DeviceKind>[] = {
    {DeviceKind::kAuto, "auto"}, {DeviceKind::kCpu, "cpu"}, {DeviceKind::kCuda, "cuda"}};

/// Of activations and of the weights that matmuls read.
enum class Precision : int32_t { kFloat32, kBfloat16, kFloat16 };
template <>
inline constexpr EnumName<Precision> kNamesOf<Precision>[] = {{Precision::kFloat32, "float32"},
                                                              {Precision::kBfloat16, "bfloat16"},
                                                              {Precision::kFloat16, "float16"}};

enum class SumOrder { kLane, kMicro };
template <>
inline constexpr EnumName<SumOrder> kNamesOf<SumOrder>[] = {{SumOrder::kLane, "lane"},
                                                            {SumOrder::kMicro, "micro"}};

enum class ReduceKind { kExact, kRing };
template <>
inline constexpr EnumName<ReduceKind> kNamesOf<ReduceKind>[] = {{ReduceKind::kExact, "exact"},
                                                                {ReduceKind::kRing, "ring"}};

enum class Isa { kAuto, kPortable, kAvx2, kAvx512 };
template <>
inline constexpr EnumName<Isa> kNamesOf<Isa>[] = {{Isa::kAuto, "auto"},
                                                  {Isa::kPortable, "portable"},
                                                  {Isa::kAvx2, "avx2"},
                                                  {Isa::kAvx512, "avx512"}};

enum class MatmulKind { kOwn, kMkl };
template <>
inline constexpr EnumName<MatmulKind> kNamesOf<MatmulKind>[] = {{MatmulKind::kOwn, "own"},
                                                                {MatmulKind::kMkl, "mkl"}};

// ---- [layout]

/// Who chooses what is not set: nobody, or the planner.
enum class PlanKind { kGiven, kAuto };
template <>
inline constexpr EnumName<PlanKind> kNamesOf<PlanKind>[] = {{PlanKind::kGiven, "given"},
                                                            {PlanKind::kAuto, "auto"}};

/// What a rank is.
enum class Workers { kProcess, kThread };
template <>
inline constexpr EnumName<Workers> kNamesOf<Workers>[] = {{Workers::kProcess, "process"},
                                                          {Workers::kThread, "thread"}};

enum class Recompute : uint8_t { kNone, kSelective, kFull };
template <>
inline constexpr EnumName<Recompute> kNamesOf<Recompute>[] = {
    {Recompute::kNone, "none"}, {Recompute::kSelective, "selective"}, {Recompute::kFull, "full"}};

/// What lives in the second tier.
enum class Offload : uint8_t { kNone, kOptimizer, kAll };
template <>
inline constexpr EnumName<Offload> kNamesOf<Offload>[] = {
    {Offload::kNone, "none"}, {Offload::kOptimizer, "optimizer"}, {Offload::kAll, "all"}};

/// Where the lanes' gradients are summed.
enum class FoldKind : uint8_t { kAuto, kLocal, kOwner, kRoot };
template <>
inline constexpr EnumName<FoldKind> kNamesOf<FoldKind>[] = {{FoldKind::kAuto, "auto"},
                                                            {FoldKind::kLocal, "local"},
                                                            {FoldKind::kOwner, "owner"},
                                                            {FoldKind::kRoot, "root"}};

/// Which rank reads a record.
enum class PartitionKind { kLanes, kEven, kRoundRobin, kHash, kFeature, kOwn };
template <>
inline constexpr EnumName<PartitionKind> kNamesOf<PartitionKind>[] = {
    {PartitionKind::kLanes, "lanes"},
    {PartitionKind::kEven, "even"},
    {PartitionKind::kRoundRobin, "round-robin"},
    {PartitionKind::kHash, "hash"},
    {PartitionKind::kFeature, "feature"},
    {PartitionKind::kOwn, "own"}};

}  // namespace tutti
