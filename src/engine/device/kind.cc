// What the job and the description of a device say is enough here: no device is opened.
#include "engine/device/kind.h"

#include <fmt/format.h>

namespace tutti {

std::string describe_kind(const DeviceInfo& info) {
  return fmt::format("{} sm_{}{} runtime {} cudnn {} cublas {}", info.name, info.major, info.minor,
                     info.runtime, info.cudnn, info.cublas);
}

int ranks_on_device(const Job& job, int rank, int devices) {
  int count = 0;
  for (int64_t r = 0; r < job.layout.ranks; ++r) count += r % devices == rank % devices ? 1 : 0;
  return count;
}

std::vector<std::string> capture_faults(const Model& model) {
  std::vector<std::string> faults;
  for (const Block& block : model.blocks)
    for (const auto& segment : block.segments) {
      // A captured step would repeat the draws of the one that was captured.
      if (segment->draws()) {
        faults.push_back(
            fmt::format("{}/{} draws from torch's generator", block.name, segment->name()));
      } else if (!segment->captures()) {
        faults.push_back(
            fmt::format("{}/{} does not say that it can be captured", block.name, segment->name()));
      }
    }
  return faults;
}

}  // namespace tutti
