#include "model/cnn.h"

#include "model/borders.h"
#include "model/cnn_reference.h"
#include "model/cnn_segments.h"
#include "model/loss.h"

namespace tutti {

Model make_cnn(const Job& job) {
  const CnnPlan plan = cnn_plan(job);
  Model model;
  model.blocks = cnn_blocks(plan, job.model);
  model.data = data_borders(job);
  model.task = Task::kClasses;
  if (job.model.autograd || job.numerics.device == "cuda") {  // the hand-written segments are the CPU's
    add_cnn_reference(plan, job, model);
  } else {
    const Isa isa = isa_of(job.numerics.isa);
    const CnnTables tables{kernels(isa, matmul_of(job.numerics.matmul)), conv_kernels(isa)};
    model.blocks.front().segments.push_back(make_cnn_stem(plan, model.data[0], tables));
    for (size_t i = 0; i < plan.blocks.size(); ++i)
      model.blocks[i + 1].segments.push_back(make_cnn_block(plan, i, tables));
    model.blocks.back().segments.push_back(make_cnn_head(plan, tables));
  }
  model.blocks.back().segments.push_back(loss_segment(job, cnn_logits(plan), model.data));
  model.check = class_check(job, cnn_logits(plan), model.data);
  return model;
}

}  // namespace tutti
