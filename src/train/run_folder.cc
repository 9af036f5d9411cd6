// No step of a run is worth a folder that cannot be used again: what fails cleans up after itself.
#include "train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "state/checkpoint.h"
#include "state/load_checkpoint.h"
#include "state/manifest.h"

namespace tutti {

namespace fs = std::filesystem;

namespace {

/// Why a folder that holds something cannot take a new run.
std::string occupied(const RunFolder& folder) {
  if (!path_exists(folder.job())) return "the folder is not empty";
  if (latest_checkpoint(folder.checkpoints()).empty())
    return "a run that ended without a checkpoint is in it; remove it or choose another folder";
  return fmt::format("a run is in it already; choose another folder, or go on with --resume {}",
                     folder.path);
}

/// Makes a folder and those above it that are missing; returns the ones it made, outermost first.
std::vector<std::string> make_folders(const std::string& path) {
  std::vector<std::string> made;
  fs::path name;
  for (const fs::path& part : fs::path(path)) {
    name /= part;
    if (::mkdir(name.c_str(), 0777) == 0) {
      made.push_back(name);
    } else if (const int reason = errno; !is_folder(name)) {
      for (; !made.empty(); made.pop_back()) ::rmdir(made.back().c_str());
      throw Error(fmt::format("cannot make {}: {}", path,
                              std::strerror(reason == EEXIST ? ENOTDIR : reason)));
    }
  }
  return made;
}

/// Nothing where another process has the lock.
Fd try_lock(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) throw_errno("lock", path);
  return {};
}

bool leads_to(const std::string& path, const Fd& folder) {
  struct stat by_name {
  }, opened{};
  return ::stat(path.c_str(), &by_name) == 0 && ::fstat(folder.get(), &opened) == 0 &&
         by_name.st_dev == opened.st_dev && by_name.st_ino == opened.st_ino;
}

/// Makes a folder that is empty or missing this process's own. Returns why it cannot be; else "".
std::string claim(const std::string& path, LockedRun& run) {
  const PathKind kind = kind_at(path);
  if (kind == PathKind::kFile || kind == PathKind::kOther) return "it exists and is not a folder";
  std::vector<std::string> made = make_folders(path);
  Fd lock = try_lock(path);
  // Who has the lock decides what becomes of the folder, also of one that was made here.
  if (!lock) return "a run is going on in it; choose another folder";
  // Its last holder may have removed it before the lock was had.
  if (!leads_to(path, lock)) return claim(path, run);
  RunFolder folder{path, std::move(made)};
  if (!names_in(path).empty()) return occupied(folder);
  run = {std::move(folder), std::move(lock)};
  return "";
}

bool unfinished(const std::string& name) {
  return name == ".writing" || name == ".latest" || name == ".removing" ||
         name.find(".tmp-") != std::string::npos;
}

}  // namespace

LockedRun create_run(const std::string& path, const Job& job) {
  LockedRun run;
  if (!path.empty()) {
    if (const std::string reason = claim(path, run); !reason.empty())
      throw Error(fmt::format("--out {}: {}", path, reason));
  }

  // A name that another start takes in this moment is not free any more.
  for (int n = 1; !run.lock; ++n)
    if (const std::string free = fmt::format("runs/{}-{}", job.name, n); !path_exists(free))
      claim(free, run);

  // A folder that is half made would be in the way of the next try.
  try {
    for (const std::string& inside : {run.folder.path + "/trace", run.folder.checkpoints()})
      make_folders(inside);
    write_file_atomic(run.folder.job(), to_toml(job));
  } catch (...) {
    remove_run(run.folder);
    throw;
  }
  return run;
}

RunFolder open_run(const std::string& path) {
  RunFolder folder{path};
  if (path.empty()) throw Error("the name of the run is empty");
  if (!is_folder(path)) throw Error(fmt::format("{}: no such run", path));
  if (!path_exists(folder.job()) && latest_checkpoint(folder.checkpoints()).empty())
    throw Error(fmt::format("{}: not a run (it has no job.toml)", path));
  return folder;
}

Job job_of_run(const RunFolder& folder, const std::vector<Setting>& settings) {
  if (path_exists(folder.job())) return parse_job(read_file(folder.job()), folder.job(), settings);
  const std::string checkpoint = checkpoint_of(folder);
  return parse_job(read_manifest(checkpoint).job_toml, checkpoint + "/" + kManifestFile, settings);
}

Fd lock_run(const RunFolder& folder) {
  if (Fd lock = try_lock(folder.path)) return lock;
  throw Error(fmt::format("{}: another process is training in it", folder.path));
}

std::string checkpoint_of(const RunFolder& folder) {
  // A later checkpoint that is damaged is told of, not passed over: steps would be lost unnoticed.
  const auto all = checkpoint_folders(folder.checkpoints());
  if (all.empty()) throw Error(fmt::format("{}: it has no checkpoint to go on from", folder.path));
  const std::string& last = all.rbegin()->second;
  if (!path_exists(last + "/" + kManifestFile))
    throw Error(
        fmt::format("{}: damaged: it has no {}; {}", last, kManifestFile, way_around(last)));
  return last;
}

std::vector<std::string> set_aside_damaged(const RunFolder& folder) {
  const Fd lock = lock_run(folder);
  const auto all = checkpoint_folders(folder.checkpoints());
  std::vector<std::pair<std::string, std::string>> damaged;  // and why
  auto newest = all.rbegin();
  for (; newest != all.rend(); ++newest) {
    const std::string fault = fault_of_checkpoint(newest->second);
    if (fault.empty()) break;
    damaged.emplace_back(newest->second,
                         fault.substr(0, fault.find("; " + way_around(newest->second))));
  }
  if (newest == all.rend())
    throw Error(fmt::format("{}: none of its {} checkpoints is whole{}", folder.path, all.size(),
                            damaged.empty() ? "" : "; " + damaged.front().second));

  std::vector<std::string> notices;
  for (const auto& [path, why] : damaged) {
    const size_t name = path.rfind('/') + 1;
    const std::string aside = path.substr(0, name) + "damaged-" + path.substr(name);
    std::error_code error;
    fs::remove_all(aside, error);  // of the same step, set aside before
    fs::rename(path, aside, error);
    if (error) throw Error(fmt::format("cannot rename {}: {}", path, error.message()));
    notices.push_back(fmt::format("{}; it is now {}", why, aside));
  }
  if (!damaged.empty()) link_latest(folder.checkpoints(), newest->second);
  return notices;
}

void cut_metrics(const RunFolder& folder, int64_t step) {
  if (!path_exists(folder.metrics())) return;
  std::istringstream lines(read_file(folder.metrics()));
  std::string kept, line;
  while (std::getline(lines, line)) {
    auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;
    const auto at = record.find("step");
    if (at == record.end() || (at->is_number() && at->get<double>() <= static_cast<double>(step)))
      kept += line + "\n";
  }
  write_file_atomic(folder.metrics(), kept);
}

void remove_traces(const RunFolder& folder) {
  const fs::path traces = fs::path(folder.trace(0)).parent_path();
  std::error_code error;
  fs::remove_all(traces, error);
  if (!error) fs::create_directory(traces, error);
  if (error) throw Error(fmt::format("cannot empty {}: {}", traces.string(), error.message()));
}

bool has_metrics(const RunFolder& folder) {
  std::error_code error;
  return fs::file_size(folder.metrics(), error) > 0 && !error;
}

void remove_unfinished(const RunFolder& folder) {
  for (const std::string& path :
       {folder.path, folder.checkpoints(), folder.best(), folder.path + "/trace"}) {
    std::error_code error;
    std::vector<fs::path> found;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
      if (unfinished(it->path().filename().string())) found.push_back(it->path());
    for (const fs::path& leftover : found) fs::remove_all(leftover, error);
  }
}

void remove_run(const RunFolder& folder) {
  // a folder that cannot be removed is in the way of the next run, which says so
  std::error_code ignored;
  for (const std::string& path :
       {folder.path + "/trace", folder.checkpoints(), folder.best(), folder.tensorboard(),
        folder.tokenizer(), folder.job(), folder.metrics(), folder.events()})
    fs::remove_all(path, ignored);
  for (auto made = folder.made.rbegin(); made != folder.made.rend(); ++made) ::rmdir(made->c_str());
}

}  // namespace tutti
