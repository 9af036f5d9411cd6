#include "engine/placement.h"

namespace tutti {

std::optional<Evaluated> WholePlacement::forward(const Pass& pass, const std::vector<at::Tensor>& data) {
  Evaluated evaluated;
  evaluated.data = placed(data);
  ModelRunner& runner = *this->runner();
  runner.forward_all(pass, evaluated.data);
  settle("evaluation");
  evaluated.loss = runner.loss();
  if (model_.task != Task::kLoss) evaluated.output = runner.border(model_.output);
  return evaluated;
}

int64_t WholePlacement::output_width() {
  return model_.task == Task::kLoss ? 0 : runner()->border(model_.output).size(-1);
}

}  // namespace tutti
