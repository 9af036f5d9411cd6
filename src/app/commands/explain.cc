// A job for a GPU is explained on a host without one, too, with a line that says so.
#include "app/commands/explain.h"

#include <fmt/format.h>

#include "app/cli/settle.h"
#include "base/text/terminal.h"

namespace tutti {

int explain_command(const TrainArguments& arguments) {
  const Prepared prepared = settle(arguments, /*elsewhere=*/true);
  show(stdout, explain(prepared.job));
  if (prepared.job.numerics.device == DeviceKind::kCuda && !prepared.machine.no_gpu.empty())
    complain(fmt::format("it would not run here: {}", prepared.machine.no_gpu));
  return 0;
}

}  // namespace tutti
