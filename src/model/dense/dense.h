// Dense layers, of which the multilayer perceptron, wide-and-deep and the
// autoencoder are made.
#pragma once

#include <string>
#include <vector>

#include "config/job.h"
#include "model/core/column_block.h"
#include "model/core/segment.h"

namespace tutti {

/// A block that computes dropout(activation(norm(linear(in)))) as the job's [model] says. Its
/// parameters are weight, bias and, by model.norm, norm.weight, norm.bias, norm.mean and
/// norm.variance. `passed` borders go through unchanged, for a block further on.
Block dense_block(const Job& job, std::string name, const Border& in, const Border& out,
                  const std::vector<Border>& passed = {});
/// A block of the linear part only.
Block linear_block(const Job& job, std::string name, const Border& in, const Border& out,
                   const std::vector<Border>& passed = {});

/// A column of the dense (or only linear) block `name`; `in` and `out` are whole. The columns
/// together compute what the whole block does; `gradient` is join_segment's. Throws Error for a
/// norm over all units of a layer.
Block dense_column(const Job& job, const std::string& name, const Border& in, const Border& out,
                   const Columns& columns);
Block linear_column(const Job& job, const std::string& name, const Border& in, const Border& out,
                    const Columns& columns, Whole gradient);

/// Adds blocks PREFIX.0, PREFIX.1, ... of the given widths; `last` becomes the border after them.
void add_dense(Model& model, const Job& job, const std::string& prefix,
               const std::vector<int64_t>& widths, Border& last,
               const std::vector<Border>& passed = {});

/// The weight and bias of a linear layer; the weight starts as model.init says, the bias at zero.
std::vector<Parameter> linear_parameters(const Job& job, const std::string& prefix, int64_t in,
                                         int64_t out);

}  // namespace tutti
