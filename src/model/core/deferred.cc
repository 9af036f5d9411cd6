// Gradients that wait in deferred memory between the two parts of a backward. The two parts carve
// the same layout, so no addresses have to be handed over.
#include "model/core/deferred.h"

#include "base/error.h"
#include "model/core/device_tensor.h"

namespace tutti {

void defer(const at::Tensor& tensor, void* to) {
  view_on(tensor.device(), to, tensor.sizes(), tensor.scalar_type()).copy_(tensor);
}

SideGradients::SideGradients(std::initializer_list<Side> sides, Carver& memory) {
  for (const Side& side : sides) add(side, memory);
}

void SideGradients::add(Side side, Carver& memory) {
  if (side.place != kNoPlace) kept_.push_back({side.place, memory.floats(side.size)});
}

float* SideGradients::operator()(int place) const {
  if (kept_.empty()) return floats(gradients_, place);
  if (place == kNoPlace) return nullptr;
  for (const Kept& kept : kept_)
    if (kept.place == place) return kept.at;
  TUTTI_CHECK(false, "the gradient of parameter {} has no deferred memory", place);
}

void SideGradients::hand_over(Tensors gradients) const {
  for (const Kept& kept : kept_) {
    const at::Tensor& to = gradients[static_cast<size_t>(kept.place)];
    to.copy_(view_on(to.device(), kept.at, to.sizes(), at::kFloat));
  }
}

}  // namespace tutti
