// `tutti plot RUN... -o FILE.svg`: curves of several runs on one picture.
#pragma once

#include <string>
#include <vector>

namespace tutti {

int plot_command(const std::vector<std::string>& runs, const std::string& metric,
                 const std::string& out);

}  // namespace tutti
