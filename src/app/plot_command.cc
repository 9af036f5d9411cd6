#include "app/plot_command.h"

#include <fmt/format.h>

#include "base/file.h"
#include "observe/plot.h"

namespace tutti {

int plot_command(const std::vector<std::string>& runs, const std::string& metric, const std::string& out) {
  std::vector<Curve> curves;
  for (const std::string& run : runs) curves.push_back(read_curve(run, metric));
  write_file_atomic(out, plot_svg(curves, metric));
  fmt::print("{}\n", out);
  return 0;
}

}  // namespace tutti
