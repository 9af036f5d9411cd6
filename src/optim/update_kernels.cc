#include "optim/update_kernels.h"

#include "base/error.h"
#include "base/processor.h"

namespace tutti {

UpdateKernels update_kernels(CodePath path) {
  TUTTI_CHECK(can_run(path), "this processor cannot run the kernels that were asked for");
  UpdateKernels kernels{};
#define TUTTI_FILL(isa) \
  [](UpdateKernels& all) { isa::fill_plain(all), isa::fill_moments(all), isa::fill_lamb(all); }
  using Fill = void (*)(UpdateKernels&);
  static constexpr Fill kFill[] = TUTTI_TABLE(TUTTI_FILL);
#undef TUTTI_FILL
  on_path(kFill, path)(kernels);
  return kernels;
}

}  // namespace tutti
