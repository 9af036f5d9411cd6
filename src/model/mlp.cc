#include "model/mlp.h"

#include "model/borders.h"
#include "model/dense.h"
#include "model/loss.h"

namespace tutti {

Model make_mlp(const Job& job) {
  Model model;
  model.data = data_borders(job);
  Border last = model.data[0];
  add_dense(model, job, "layers", job.model.hidden, last);
  const bool classes = targets_are_classes(job);
  const Border output{"logits", {job.train.micro_batch_size, classes ? job.model.classes : job.model.outputs}};
  model.blocks.push_back(linear_block(job, "head", last, output));
  model.blocks.back().segments.push_back(loss_segment(job, output, model.data));
  model.check = class_check(job, output, model.data);
  model.task = classes ? Task::kClasses : job.loss.kind == "bce" ? Task::kBinary : Task::kValues;
  return model;
}

}  // namespace tutti
