// Puts the perceptron together, whole or in columns.
#include "model/dense/mlp.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "config/job_parts.h"
#include "model/core/data_borders.h"
#include "model/dense/dense.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

// The whole model: one block per layer.
void add_whole(Model& model, const Job& job, const Border& output) {
  Border last = model.data[0];
  add_dense(model, job, "layers", job.model.hidden, last);
  model.blocks.push_back(linear_block(job, "head", last, output));
  model.blocks.back().segments.push_back(loss_segment(job, output, model.data));
}

// The same model in columns, each with its own units of every layer.
void add_columns(Model& model, const Job& job, const Border& output) {
  const int64_t columns = job.train.tensor_slices;
  std::vector<std::string> faults;
  for (const int64_t width : job.model.hidden) check_cut("model.hidden", width, columns, faults);
  check_cut(targets_are_classes(job) ? "model.classes" : "model.outputs", output.dims[1], columns,
            faults);
  if (!faults.empty()) throw Error(fmt::format("{}", fmt::join(faults, "\n")));

  // Layer by layer, and within a layer column by column. Every column ends with the whole output
  // and the same loss.
  model.columns = static_cast<int>(columns);
  Border last = model.data[0];
  for (size_t i = 0; i < job.model.hidden.size(); ++i) {
    const Border out{"hidden", {job.train.micro_batch_size, job.model.hidden[i]}};
    for (int64_t column = 0; column < columns; ++column)
      model.blocks.push_back(
          dense_column(job, fmt::format("layers.{}", i), last, out, {columns, column}));
    last = out;
  }
  for (int64_t column = 0; column < columns; ++column) {
    Block& head = model.blocks.emplace_back(
        linear_column(job, "head", last, output, {columns, column}, Whole::kSame));
    head.segments.push_back(loss_segment(job, output, model.data));
  }
}

}  // namespace

Model make_mlp(const Job& job) {
  Model model;
  model.data = data_borders(job);
  const bool classes = targets_are_classes(job);
  const Border output{
      "logits", {job.train.micro_batch_size, classes ? job.model.classes : job.model.outputs}};
  if (job.train.tensor_slices > 1) {
    add_columns(model, job, output);
  } else {
    add_whole(model, job, output);
  }
  model.check = class_check(job, output, model.data);
  model.task = classes ? Task::kClasses : loss_part(job).yes_or_no ? Task::kBinary : Task::kValues;
  return model;
}

}  // namespace tutti
