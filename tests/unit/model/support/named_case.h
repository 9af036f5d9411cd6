// Parameters and gradients of a FlatModel by their full names, and numbers to fill tensors with.
#pragma once

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "config/job.h"
#include "config/model_rules.h"
#include "support/flat_model.h"

namespace tutti::named_case {

inline std::pair<int, int> place_of(const FlatModel& flat, const std::string& name) {
  for (size_t b = 0; b < flat.shape.blocks.size(); ++b)
    for (size_t p = 0; p < flat.shape.blocks[b].parameters.size(); ++p)
      if (flat.shape.blocks[b].parameters[p].name == name)
        return {static_cast<int>(b), static_cast<int>(p)};
  ADD_FAILURE() << "no parameter is called " << name;
  return {0, 0};
}

/// A view of the model's own memory.
inline at::Tensor value(const FlatModel& flat, const std::string& name) {
  const auto [block, parameter] = place_of(flat, name);
  return flat.value(block, parameter);
}
inline at::Tensor gradient(const FlatModel& flat, const std::string& name) {
  const auto [block, parameter] = place_of(flat, name);
  return flat.gradient(block, parameter);
}
/// A copy to differentiate by.
inline at::Tensor leaf(const FlatModel& flat, const std::string& name) {
  return value(flat, name).clone().requires_grad_();
}

/// Numbers in [-scale, scale] that look like nothing in particular.
inline at::Tensor wave(const std::vector<int64_t>& dims, double phase, double scale = 1) {
  int64_t size = 1;
  for (int64_t dim : dims) size *= dim;
  return at::arange(size, at::kFloat).mul(1.7).add(phase).sin().mul(scale).reshape(dims);
}

/// All parameters that start as zeros or ones get other values.
inline void stir(FlatModel& flat) {
  double phase = 0.3;
  for (size_t b = 0; b < flat.shape.blocks.size(); ++b)
    for (size_t p = 0; p < flat.shape.blocks[b].parameters.size(); ++p) {
      at::Tensor values = flat.value(static_cast<int>(b), static_cast<int>(p));
      values.add_(wave(values.sizes().vec(), phase += 0.7, 0.3));
    }
}

inline bool near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  return at::allclose(a.detach(), b.detach(), tolerance, tolerance);
}

/// A job from TOML with everything resolved.
inline Job resolved(const std::string& toml) {
  Job job = parse_job(toml, "job", {});
  resolve(job, this_machine(), {});
  return job;
}

}  // namespace tutti::named_case
