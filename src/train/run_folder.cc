// No step of a run is worth a folder that cannot be used again: what fails cleans up behind itself.
#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "state/checkpoint.h"
#include "state/manifest.h"

namespace tutti {

namespace fs = std::filesystem;

namespace {

/// Why a folder that holds something cannot take a new run.
std::string occupied(const RunFolder& folder) {
  const std::string& path = folder.path;
  if (!fs::exists(folder.job())) return fmt::format("--out {}: the folder is not empty", path);
  if (latest_checkpoint(folder.checkpoints()).empty())
    return fmt::format("--out {}: a run that ended without a checkpoint is in it; remove it or choose another folder",
                       path);
  return fmt::format("--out {}: a run is in it already; choose another folder, or go on with --resume {}", path, path);
}

bool unfinished(const std::string& name) {
  return name == ".writing" || name == ".latest" || name.find(".tmp-") != std::string::npos;
}

}  // namespace

RunFolder create_run(const std::string& path, const Job& job) {
  RunFolder folder{path, false};
  for (int n = 1; folder.path.empty(); ++n)
    if (std::string candidate = fmt::format("runs/{}-{}", job.name, n); !fs::exists(candidate)) folder.path = candidate;
  std::error_code error;
  if (fs::exists(folder.path) && !fs::is_directory(folder.path))
    throw Error(fmt::format("--out {}: it exists and is not a folder", folder.path));
  if (fs::exists(folder.path) && !fs::is_empty(folder.path, error)) throw Error(occupied(folder));
  folder.made = !fs::exists(folder.path);
  try {
    fs::create_directories(folder.path + "/trace", error);
    if (!error) fs::create_directories(folder.checkpoints(), error);
    if (error) throw Error(fmt::format("cannot make {}: {}", folder.path, error.message()));
    write_file_atomic(folder.job(), to_toml(job));
  } catch (...) {
    remove_run(folder);
    throw;
  }
  return folder;
}

RunFolder open_run(const std::string& path) {
  RunFolder folder{path, false};
  if (!fs::is_directory(path)) throw Error(fmt::format("{}: no such run", path));
  if (!fs::exists(folder.job())) throw Error(fmt::format("{}: not a run (it has no job.toml)", path));
  return folder;
}

Fd lock_run(const RunFolder& folder) {
  Fd fd(::open(folder.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno("open", folder.path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) throw_errno("lock", folder.path);
  throw Error(fmt::format("{}: another process is training in it", folder.path));
}

std::string checkpoint_of(const RunFolder& folder) {
  const std::string latest = latest_checkpoint(folder.checkpoints());
  auto later = [&](const std::string& path) {  // names of higher steps are longer, or sort behind
    return path.size() != latest.size() ? path.size() > latest.size() : path > latest;
  };
  std::error_code error;
  for (fs::directory_iterator it(folder.checkpoints(), error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (it->path().filename().string().starts_with("step-") && later(path) && !fs::exists(it->path() / kManifestFile))
      throw Error(fmt::format("{}: damaged: it has no {}; remove the folder to go on from the checkpoint before it",
                              path, kManifestFile));
  }
  if (latest.empty()) throw Error(fmt::format("{}: it has no checkpoint to go on from", folder.path));
  return latest;
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

void remove_traces(const RunFolder& folder) {
  const fs::path traces = fs::path(folder.trace(0)).parent_path();
  fs::remove_all(traces);
  fs::create_directory(traces);
}

bool has_metrics(const RunFolder& folder) {
  std::error_code error;
  return fs::file_size(folder.metrics(), error) > 0 && !error;
}

void remove_unfinished(const RunFolder& folder) {
  for (const std::string& path : {folder.path, folder.checkpoints(), folder.best(), folder.path + "/trace"}) {
    std::error_code error;
    std::vector<fs::path> found;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
      if (unfinished(it->path().filename().string())) found.push_back(it->path());
    for (const fs::path& leftover : found) fs::remove_all(leftover, error);
  }
}

void remove_run(const RunFolder& folder) {
  std::error_code ignored;  // a folder that cannot be removed is in the way of the next run, which says so
  for (const std::string& path : {folder.path + "/trace", folder.checkpoints(), folder.best(), folder.tensorboard(),
                                  folder.tokenizer(), folder.job(), folder.metrics(), folder.events()})
    fs::remove_all(path, ignored);
  if (folder.made) fs::remove(folder.path, ignored);
}

}  // namespace tutti
