// Reads a curve from every run and draws them all.
#include "app/commands/plot_command.h"

#include "base/file.h"
#include "base/text/terminal.h"
#include "observe/plot.h"

namespace tutti {

int plot_command(const std::vector<std::string>& runs, const std::string& metric,
                 const std::string& out) {
  refuse_bad_output(out);
  std::vector<Curve> curves;
  for (const std::string& run : runs) curves.push_back(read_curve(run, metric));
  write_output(out, plot_svg(curves, metric));
  if (!is_stdout(out)) show(stdout, out + "\n");
  return 0;
}

}  // namespace tutti
