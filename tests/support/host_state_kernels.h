// StateKernels of the host: plain loops over the CPU's own kernels, done when a call returns. What
// device/state_kernels.h promises, in the words that are easiest to check.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/processor.h"
#include "comm/fold.h"
#include "device/state_kernels.h"
#include "optim/optimizer.h"

namespace tutti::testing_support {

namespace host_kernels {

inline const UpdateKernels& update_kernels() {
  static const UpdateKernels kernels = tutti::update_kernels(fastest_path());
  return kernels;
}

inline float* gradient_scales(StepOutcome* outcome) {
  return reinterpret_cast<float*>(outcome + 1);
}
inline const float* gradient_scales(const StepOutcome* outcome) {
  return reinterpret_cast<const float*>(outcome + 1);
}

inline void fold_terms(Stream, float* out, std::span<const float* const> terms,
                       std::span<const FoldStep> order, int64_t n) {
  fold(out, terms, order, n);
}

inline void add(Stream, float* a, const float* b, int64_t n) { add_into(a, b, n); }

inline void chunk_squares(Stream, const float* x, const StateChunk* chunks, int64_t count,
                          double* votes) {
  for (int64_t c = 0; c < count; ++c)
    votes[chunks[c].place] = sum_squares(x + chunks[c].at, chunks[c].size);
}

inline double sum_of(const double* values, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += values[i];
  return sum;
}

inline void commit(Stream, const double* votes, const VoteLayout& layout, const StepInputs* inputs,
                   StepOutcome* outcome) {
  outcome->squares = sum_of(votes, 0, layout.chunks);
  outcome->loss = sum_of(votes, layout.losses(), layout.losses() + layout.micro_batches);
  outcome->targets = sum_of(votes, layout.counts(), layout.counts() + layout.micro_batches);
  outcome->stop = votes[layout.stop()];
  outcome->saving = votes[layout.saving()];
  outcome->finite = std::isfinite(outcome->squares) && std::isfinite(outcome->loss) &&
                            std::isfinite(outcome->targets)
                        ? 1
                        : 0;
  const double divisor = outcome->targets > 0 ? outcome->targets : 1, scale = inputs->loss_scale[0];
  const auto factor = [&](double squares) {
    return clip_factor(std::sqrt(squares) / divisor / scale, inputs->clip);
  };
  for (int32_t u = 0; u < layout.units; ++u) {
    double clip = 1;
    if (inputs->clip_by == ClipBy::kNorm) clip = factor(outcome->squares);
    if (inputs->clip_by == ClipBy::kUnit) {
      clip = factor(sum_of(votes, layout.unit_chunks[u], layout.unit_chunks[u + 1]));
    }
    gradient_scales(outcome)[u] = static_cast<float>(clip / divisor / scale);
  }
}

inline void cast(Stream, const float* from, void* to, int64_t n, Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      std::memmove(to, from, n * sizeof(float));
      return;
    case Precision::kBfloat16:
      for (int64_t i = 0; i < n; ++i) static_cast<c10::BFloat16*>(to)[i] = c10::BFloat16(from[i]);
      return;
    case Precision::kFloat16:
      for (int64_t i = 0; i < n; ++i) static_cast<c10::Half*>(to)[i] = c10::Half(from[i]);
      return;
  }
}

/// Lamb's first pass over a chunk of trained floats: moves the moments.
inline ChunkSquares measure(const UpdateArguments& a, const StateChunk& chunk,
                            float gradient_scale) {
  MomentScalars moments = a.rules[chunk.rule].moments;
  moments.gradient.scale = gradient_scale;
  return update_kernels().lamb_measure(a.parameters + chunk.at, a.gradients + chunk.at,
                                       a.slots[0] + chunk.at, a.slots[1] + chunk.at, chunk.size,
                                       moments);
}

inline void find_trust(const UpdateArguments& a, float gradient_scale) {
  for (int64_t c = 0; c < a.chunk_count; ++c) {
    const bool trained = a.rules[a.chunks[c].rule].role == RuleScalars::kTrained;
    const ChunkSquares squares =
        trained ? measure(a, a.chunks[c], gradient_scale) : ChunkSquares{0, 0};
    a.chunk_norms[2 * c] = squares.parameter;
    a.chunk_norms[2 * c + 1] = squares.direction;
  }
  for (int32_t p = 0; p < a.parameter_count; ++p) {
    Norms norms;
    for (int64_t c = a.parameter_chunks[p]; c < a.parameter_chunks[p + 1]; ++c) {
      norms.parameter.add(a.chunk_norms[2 * c]);
      norms.direction.add(a.chunk_norms[2 * c + 1]);
    }
    a.trust[p] = static_cast<float>(trust_ratio(norms));
  }
}

inline void step_chunk(const UpdateArguments& a, const StateChunk& chunk, float gradient_scale) {
  const RuleScalars& rule = a.rules[chunk.rule];
  PlainScalars plain = rule.plain;
  MomentScalars moments = rule.moments;
  plain.gradient.scale = moments.gradient.scale = gradient_scale;
  float* p = a.parameters + chunk.at;
  const float* g = a.gradients + chunk.at;
  float* first = a.slots[0] == nullptr ? nullptr : a.slots[0] + chunk.at;
  float* second = a.slots[1] == nullptr ? nullptr : a.slots[1] + chunk.at;
  const UpdateKernels& on = update_kernels();
  switch (a.kind) {
    case UpdateKind::kSgd:
      return on.sgd(p, g, first, chunk.size, plain, rule.momentum, a.nesterov);
    case UpdateKind::kAdagrad:
      return on.adagrad(p, g, first, chunk.size, plain);
    case UpdateKind::kRmsprop:
      return on.rmsprop(p, g, first, second, chunk.size, plain);
    case UpdateKind::kAdam:
      return on.adam(p, g, first, second, chunk.size, moments);
    case UpdateKind::kAdamw:
      return on.adamw(p, g, first, second, chunk.size, moments);
    case UpdateKind::kLion:
      return on.lion(p, g, first, chunk.size, moments);
    case UpdateKind::kLamb:
      moments.step_size *= a.trust[chunk.parameter];
      return on.lamb_update(p, first, second, chunk.size, moments);
  }
}

inline void update(Stream stream, const UpdateArguments& a) {
  if (a.outcome->finite == 0) return;
  const float gradient_scale = gradient_scales(a.outcome)[a.unit];
  if (a.kind == UpdateKind::kLamb) find_trust(a, gradient_scale);
  const size_t low_size = a.precision == Precision::kFloat32 ? 4 : 2;
  for (int64_t c = 0; c < a.chunk_count; ++c) {
    const StateChunk& chunk = a.chunks[c];
    const RuleScalars& rule = a.rules[chunk.rule];
    float* p = a.parameters + chunk.at;
    const float* g = a.gradients + chunk.at;
    switch (rule.role) {
      case RuleScalars::kFrozen:
        continue;
      case RuleScalars::kTrained:
        step_chunk(a, chunk, gradient_scale);
        break;
      case RuleScalars::kMeanBuffer:
        for (int32_t i = 0; i < chunk.size; ++i) p[i] = g[i] / rule.proposals;
        break;
      case RuleScalars::kSumBuffer:
        for (int32_t i = 0; i < chunk.size; ++i) p[i] += g[i];
        break;
    }
    if (a.low != nullptr) {
      cast(stream, p, static_cast<std::byte*>(a.low) + chunk.at * low_size, chunk.size,
           a.precision);
    }
  }
}

}  // namespace host_kernels

inline StateKernels host_state_kernels() {
  return {.fold = host_kernels::fold_terms,
          .add_into = host_kernels::add,
          .chunk_squares = host_kernels::chunk_squares,
          .commit = host_kernels::commit,
          .update = host_kernels::update,
          .cast = host_kernels::cast};
}

}  // namespace tutti::testing_support
