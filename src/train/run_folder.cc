#include "train/run_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace tutti {

namespace fs = std::filesystem;

RunFolder create_run(const std::string& path, const Job& job) {
  RunFolder folder{path};
  for (int n = 1; folder.path.empty(); ++n)
    if (std::string candidate = fmt::format("runs/{}-{}", job.name, n); !fs::exists(candidate)) folder.path = candidate;
  std::error_code error;
  if (fs::exists(folder.path) && !fs::is_directory(folder.path))
    throw Error(fmt::format("--out {}: it exists and is not a folder", folder.path));
  if (fs::exists(folder.path) && !fs::is_empty(folder.path, error))
    throw Error(fs::exists(folder.job())
                    ? fmt::format("--out {}: a run is in it already; choose another folder, or go on with --resume {}",
                                  folder.path, folder.path)
                    : fmt::format("--out {}: the folder is not empty", folder.path));
  fs::create_directories(folder.path + "/trace", error);
  if (!error) fs::create_directories(folder.checkpoints(), error);
  if (error) throw Error(fmt::format("cannot make {}: {}", folder.path, error.message()));
  write_file_atomic(folder.job(), to_toml(job));
  return folder;
}

RunFolder open_run(const std::string& path) {
  RunFolder folder{path};
  if (!fs::is_directory(path)) throw Error(fmt::format("{}: no such run", path));
  if (!fs::exists(folder.job())) throw Error(fmt::format("{}: not a run (it has no job.toml)", path));
  return folder;
}

void cut_metrics(const RunFolder& folder, int64_t step) {
  if (!fs::exists(folder.metrics())) return;
  std::istringstream lines(read_file(folder.metrics()));
  std::string kept, line;
  while (std::getline(lines, line)) {
    auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_discarded() && record.value("step", int64_t{0}) <= step) kept += line + "\n";
  }
  write_file_atomic(folder.metrics(), kept);
}

}  // namespace tutti
