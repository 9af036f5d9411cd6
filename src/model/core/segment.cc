// What a segment that cannot run its backward in two parts says when it is asked to.
#include "model/core/segment.h"

#include "base/error.h"

namespace tutti {

void Segment::backward_input(Context&, Tensors, Tensors, Tensors, Tensors) const {
  TUTTI_CHECK(false, "segment {} has no input part", name());
}

void Segment::backward_weight(Context&, Tensors, Tensors) const {
  TUTTI_CHECK(false, "segment {} has no weight part", name());
}

}  // namespace tutti
