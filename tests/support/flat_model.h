// A model with flat units and gradients of its own, for tests that run one without a trainer.
#pragma once

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "model/core/runner.h"

namespace tutti {

struct FlatModel {
  FlatModel(Model m, uint64_t seed) : model(std::move(m)), shape(describe(model)) {
    for (size_t b = 0; b < shape.blocks.size(); ++b) {
      units.push_back(aligned(shape.blocks[b].unit_size, 0));
      // what is not written shows
      gradients.push_back(aligned(shape.blocks[b].gradient_size, NAN));
      unit_pointers.push_back(units.back().get());
      gradient_pointers.push_back(gradients.back().get());
      size_t own = 0;
      for (const Parameter& parameter : model.blocks[b].parameters) {
        if (!parameter.shared_with.empty()) continue;
        const ParameterShape& p = shape.blocks[b].parameters[own++];
        initialise(parameter, p.name, seed,
                   {unit_pointers[b] + p.offset, static_cast<size_t>(p.size)});
      }
    }
    runner = std::make_unique<ModelRunner>(model, shape, unit_pointers, accounts);
  }
  at::Tensor value(int block, int parameter) const {
    const ParameterShape& p = shape.blocks[block].parameters[parameter];
    return at::from_blob(unit_pointers[block] + p.offset, p.dims);
  }
  at::Tensor gradient(int block, int parameter, int extra = -1) const {
    const ParameterShape& p = shape.blocks[block].parameters[parameter];
    return at::from_blob(
        gradient_pointers[block] + (extra < 0 ? p.offset : p.extra_gradients[extra]), p.dims);
  }

  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  using Floats = std::unique_ptr<float[], Free>;
  static Floats aligned(int64_t n, float value) {
    const size_t bytes = align_up(std::max<int64_t>(n, 1), kAlign) * sizeof(float);
    Floats memory(static_cast<float*>(std::aligned_alloc(64, bytes)));
    std::fill_n(memory.get(), n, value);
    return memory;
  }

  Model model;
  ModelShape shape;
  Accounts accounts;
  std::vector<Floats> units, gradients;
  std::vector<float*> unit_pointers, gradient_pointers;
  std::unique_ptr<ModelRunner> runner;
};

}  // namespace tutti
