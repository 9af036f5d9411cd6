// Puts a CNN together, whole or in columns: hand-written segments for the CPU; under autograd for a
// GPU and where the job asks for it.
#include "model/cnn/cnn.h"

#include "config/isa.h"
#include "model/cnn/cnn_reference.h"
#include "model/cnn/cnn_segments.h"
#include "model/core/by_hand.h"
#include "model/core/data_borders.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

/// Adds the loss after the head of every column.
void add_loss(Model& model, const Job& job, const Border& logits) {
  for (size_t column = 1; column <= static_cast<size_t>(model.columns); ++column)
    model.blocks[model.blocks.size() - column].segments.push_back(
        loss_segment(job, logits, model.data));
  model.check = class_check(job, logits, model.data);
}

/// The segments by hand of a whole model's blocks.
void add_whole(const CnnPlan& plan, const CnnTables& tables, Model& model) {
  model.blocks.front().segments.push_back(
      make_cnn_stem(plan, model.data[0], cnn_stream(plan, 0), tables));
  for (size_t i = 0; i < plan.blocks.size(); ++i)
    model.blocks[i + 1].segments.push_back(make_cnn_block(plan, i, tables));
  model.blocks.back().segments.push_back(
      make_cnn_head(plan.shape, cnn_stream(plan, plan.blocks.size()), cnn_logits(plan), tables));
}

}  // namespace

Model make_cnn(const Job& job) {
  const CnnPlan plan = cnn_plan(job);
  Model model;
  model.data = data_borders(job);
  model.task = Task::kClasses;
  const bool columns = job.train.tensor_slices > 1;
  if (columns) {
    check_cnn_columns(plan, job);
  } else {
    model.blocks = cnn_blocks(plan, job.model);
  }
  // The hand-written segments exist for the CPU only.
  if (by_hand(job)) {
    const CodePath path = path_of(job.layout);
    const CnnTables tables{kernels(path, job.numerics.matmul), conv_kernels(path)};
    columns ? add_cnn_columns_by_hand(plan, job, tables, model) : add_whole(plan, tables, model);
  } else {
    columns ? add_cnn_columns(plan, job, model) : add_cnn_reference(plan, job, model);
  }
  add_loss(model, job, cnn_logits(plan));
  return model;
}

}  // namespace tutti
