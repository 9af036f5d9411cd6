// Describes products to cuBLASLt and chooses their algorithms. A row-major product is the
// column-major product of the transposes, so operands swap places: cuBLASLt's first operand is b,
// and its result c^T has n rows. The bias, which it adds along the rows, is thus one value per
// column of ours.
#include "cuda/matmul/lt_plan.h"

#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "cuda/current_queue.h"
#include "cuda/errors.h"

namespace tutti {

namespace {

constexpr size_t kScratch = size_t{64} << 20;  // the most bytes that an algorithm may ask for

using Preference = LtOwned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(at::ScalarType type) {
  if (type == at::kBFloat16) return CUDA_R_16BF;
  return type == at::kHalf ? CUDA_R_16F : CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(LtEpilogue epilogue) {
  switch (epilogue) {
    case LtEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case LtEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case LtEpilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case LtEpilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <class Value>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
         const Value& value) {
  TUTTI_LT_CALL(cublasLtMatmulDescSetAttribute, description, attribute, &value, sizeof value);
}
template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  TUTTI_LT_CALL(cublasLtMatmulPreferenceSetAttribute, preference, attribute, &value, sizeof value);
}

/// A column-major matrix without gaps.
LtLayout layout(at::ScalarType type, int64_t rows, int64_t cols) {
  cublasLtMatrixLayout_t made = nullptr;
  TUTTI_LT_CALL(cublasLtMatrixLayoutCreate, &made, type_of(type), static_cast<uint64_t>(rows),
                static_cast<uint64_t>(cols), rows);
  return LtLayout(made);
}
/// The layout of an operand whose memory is rows x cols, row by row; if `transposed`, it is cols
/// x rows.
LtLayout operand(at::ScalarType type, int64_t rows, int64_t cols, bool transposed) {
  return transposed ? layout(type, rows, cols) : layout(type, cols, rows);
}

LtDescription describe(const LtProduct& p) {
  cublasLtMatmulDesc_t made = nullptr;
  TUTTI_LT_CALL(cublasLtMatmulDescCreate, &made, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  // What accumulates is float32 for every type of the operands.
  LtDescription description(made);
  set(made, CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(made, CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(made, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p.epilogue));
  if (p.epilogue == LtEpilogue::kBias || p.epilogue == LtEpilogue::kBiasGelu)
    set(made, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.out));
  if (p.epilogue == LtEpilogue::kBiasGelu || p.epilogue == LtEpilogue::kGeluGradient)
    set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
  return description;
}

/// Sums in parts (split-K) are added by a kernel of their own, from scratch. The scheme that adds
/// them in place is left out: its order is not fixed.
Preference preference() {
  cublasLtMatmulPreference_t made = nullptr;
  TUTTI_LT_CALL(cublasLtMatmulPreferenceCreate, &made);
  Preference preference(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kScratch);
  set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE});

  // lt_multiply refuses arrays that do not begin on these borders, so one plan serves all that
  // it takes.
  for (const auto border :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(made, border, static_cast<uint32_t>(kLtBorder));
  return preference;
}

/// Calls `each` with the name and the value of every part of an algorithm.
template <class Named, class Each>
void for_parts(Named& a, Each&& each) {
  each(CUBLASLT_ALGO_CONFIG_TILE_ID, a.tile);
  each(CUBLASLT_ALGO_CONFIG_STAGES_ID, a.stages);
  each(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, a.split);
  each(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, a.reduction);
  each(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, a.swizzle);
  each(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, a.custom);
  each(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, a.inner);
  each(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, a.cluster);
}

}  // namespace

void check_lt(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(fmt::format("{}: {}", call, cublasLtGetStatusString(status)));
}

cublasStatus_t LtPlan::run(cublasLtHandle_t handle, const LtArrays& arrays,
                           const LtReady& by) const {
  if (arrays.bias != nullptr)
    set(description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, arrays.bias);
  if (arrays.aux != nullptr)
    set(description.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, arrays.aux);

  // The residual takes the place of the old c in a b + beta c; without one, c is not read.
  CurrentQueue queue;
  const float one = 1, beta = arrays.residual != nullptr ? 1 : 0;
  const void* added = arrays.residual != nullptr ? arrays.residual : arrays.c;
  void* const scratch = by.scratch > 0 ? queue.take(by.scratch) : nullptr;
  return cublasLtMatmul(handle, description.get(), &one, arrays.b, b.get(), arrays.a, a.get(),
                        &beta, added, c.get(), arrays.c, c.get(), &by.algorithm, scratch,
                        by.scratch, queue.stream);
}

std::string lt_gpu() {
  cudaDeviceProp properties{};
  TUTTI_CUDA_CALL(cudaGetDeviceProperties, &properties, c10::cuda::current_device());
  return properties.name;
}

std::vector<LtReady> lt_offered(const LtPlan& plan, cublasLtHandle_t handle) {
  std::array<cublasLtMatmulHeuristicResult_t, 32> results{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, plan.description.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(),
      preference().get(), static_cast<int>(results.size()), results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_lt(status, "cublasLtMatmulAlgoGetHeuristic");

  std::vector<LtReady> list;
  for (int i = 0; i < found; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS)
      list.push_back({results[i].algo, results[i].workspaceSize});
  return list;
}

LtAlgorithm lt_name(const cublasLtMatmulAlgo_t& algorithm) {
  LtAlgorithm a{};
  const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t part, auto& value) {
    size_t written = 0;
    TUTTI_LT_CALL(cublasLtMatmulAlgoConfigGetAttribute, &algorithm, part, &value, sizeof value,
                  &written);
  };
  get(CUBLASLT_ALGO_CONFIG_ID, a.id);
  for_parts(a, get);
  return a;
}

std::optional<LtReady> lt_by_name(const LtAlgorithm& name, const LtProduct& p, const LtPlan& plan,
                                  cublasLtHandle_t handle) {
  LtReady made{};
  const cudaDataType_t in = type_of(p.in), out = type_of(p.out);
  if (cublasLtMatmulAlgoInit(handle, CUBLAS_COMPUTE_32F, CUDA_R_32F, in, in, out, out, name.id,
                             &made.algorithm) != CUBLAS_STATUS_SUCCESS)
    return {};

  // The library may know the kernel but not these parts, or not for this product: it is asked.
  bool known = true;
  for_parts(name, [&](cublasLtMatmulAlgoConfigAttributes_t part, const auto& value) {
    known = known && cublasLtMatmulAlgoConfigSetAttribute(&made.algorithm, part, &value,
                                                          sizeof value) == CUBLAS_STATUS_SUCCESS;
  });
  cublasLtMatmulHeuristicResult_t checked{};
  if (!known || cublasLtMatmulAlgoCheck(handle, plan.description.get(), plan.b.get(), plan.a.get(),
                                        plan.c.get(), plan.c.get(), &made.algorithm,
                                        &checked) != CUBLAS_STATUS_SUCCESS)
    return {};

  made.scratch = checked.workspaceSize;
  if (made.scratch > kScratch) return {};
  return made;
}

LtPlan make_lt_plan(const LtProduct& p, cublasLtHandle_t handle) {
  LtPlan plan{describe(p), operand(p.in, p.m, p.k, p.a_transposed),
              operand(p.in, p.k, p.n, p.b_transposed), operand(p.out, p.m, p.n, false)};

  // A recorded algorithm is taken or fails, never replaced: ranks with different ones would differ
  // in bits.
  const auto choices = lt_choices(lt_gpu(), cublasLtGetVersion());
  const auto choice = std::find_if(choices.begin(), choices.end(),
                                   [&](const LtChoice& c) { return c.product == p; });
  if (choice != choices.end()) {
    plan.chosen = lt_by_name(choice->algorithm, p, plan, handle);
    TUTTI_CHECK(plan.chosen,
                "cuBLASLt does not know the algorithm that lt_choices.cc has for {} x {} x {}", p.m,
                p.n, p.k);
  } else if (const auto list = lt_offered(plan, handle); !list.empty()) {
    plan.chosen = list.front();
  }
  return plan;
}

}  // namespace tutti
