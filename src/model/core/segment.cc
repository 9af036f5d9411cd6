// The defaults for segments whose backward does not run in two parts. A plan asks splits() first,
// so a call that ends here is a fault of the program.
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
