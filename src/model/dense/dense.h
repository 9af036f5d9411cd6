// Dense layers under autograd: what the multilayer perceptron, wide-and-deep and the autoencoder
// are made of.
#pragma once

#include <string>
#include <vector>

#include "config/job.h"
#include "model/core/column_block.h"
#include "model/core/segment.h"

namespace tutti {

/// dropout(activation(norm(linear(in)))) as the job's [model] says; parameters weight, bias and, by
/// model.norm, norm.weight, norm.bias, norm.mean and norm.variance. `passed` borders go by
/// unchanged: for a block further on.
Block dense_block(const Job& job, std::string name, const Border& in, const Border& out,
                  const std::vector<Border>& passed = {});
/// Only the linear part.
Block linear_block(const Job& job, std::string name, const Border& in, const Border& out,
                   const std::vector<Border>& passed = {});

/// A column of the dense (or only the linear) block `name`; `in` and `out` are whole. The columns'
/// function together is the whole block's; `gradient` as join_segment has it. Throws Error for a
/// norm over all units of a layer.
Block dense_column(const Job& job, const std::string& name, const Border& in, const Border& out,
                   const Columns& columns);
Block linear_column(const Job& job, const std::string& name, const Border& in, const Border& out,
                    const Columns& columns, Whole gradient);

/// Blocks PREFIX.0, PREFIX.1, ... of the given widths; `last` becomes the border behind them.
void add_dense(Model& model, const Job& job, const std::string& prefix,
               const std::vector<int64_t>& widths, Border& last,
               const std::vector<Border>& passed = {});

/// Weight and bias of a linear layer.
std::vector<Parameter> linear_parameters(const Job& job, const std::string& prefix, int64_t in,
                                         int64_t out);

}  // namespace tutti
