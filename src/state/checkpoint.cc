// Everything is first written and synced under hidden names (.writing, .latest); then two renames
// show it. What can fail for want of space comes before the first of them.
#include "state/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "state/manifest.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw Error(fmt::format("create {}: {}", path, error.message()));
}

/// The hidden names of a save. They are removed when it ends, however it ends, and before it
/// begins, if a save before was killed.
struct Hidden {
  explicit Hidden(const std::string& folder)
      : writing(folder + "/.writing"), latest(folder + "/.latest") {
    remove();
  }
  ~Hidden() { remove(); }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;
  void remove() const {
    // what is in the way of a later save is named there
    std::error_code ignored;
    fs::remove_all(writing, ignored);
    fs::remove(latest, ignored);
  }
  const std::string writing, latest;
};

/// Puts the folder `from` at `to`. A folder that was there ends up at `from`: the two are
/// exchanged, so there is no moment without a checkpoint of that step.
void show(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST &&
      renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0)
    return;
  // A file system that does not know the flags of renameat2.
  if (errno == EINVAL && rename(from.c_str(), to.c_str()) == 0) return;
  throw_errno("rename onto", to);
}

// The step of a checkpoint's folder, -1 for any other name.
int64_t step_of(const std::string& name) {
  int64_t step = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, step);
  return result.ec == std::errc() && result.ptr == end ? step : -1;
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const StateSource& source,
                            const std::string& job_toml) {
  make_folder(folder);
  const std::string name = fmt::format("{}{:08}", kPrefix, source.counters.step);
  std::string path = folder + "/" + name;

  // All that needs space: the state, the manifest and the link, each of them synced.
  const Hidden hidden(folder);
  if (mkdir(hidden.writing.c_str(), 0777) != 0) throw_errno("create", hidden.writing);
  const WrittenState written = write_safetensors(hidden.writing + "/" + kStateFile, source);
  write_manifest(hidden.writing, {source.counters, written.state_sha256, written.file, job_toml});
  if (symlink(name.c_str(), hidden.latest.c_str()) != 0) throw_errno("create", hidden.latest);
  sync_directory(folder);

  // The folder appears before the link to it, and both are synced in the end. A kill in between
  // leaves a link to the checkpoint before.
  show(hidden.writing, path);
  if (rename(hidden.latest.c_str(), (folder + "/latest").c_str()) != 0)
    throw_errno("rename onto", folder + "/latest");
  sync_directory(folder);
  return path;
}

std::string save_checkpoint(const std::string& folder, const State& state,
                            const std::string& job_toml) {
  return save_checkpoint(folder, source_of(state), job_toml);
}

StateCounters load_checkpoint(const std::string& checkpoint, const std::vector<EntryShape>& entries,
                              std::span<const StatePiece> pieces) {
  const Manifest manifest = read_manifest(checkpoint);
  const std::string found = read_safetensors(checkpoint + "/" + kStateFile, manifest.state_file,
                                             entries, pieces, manifest.counters);

  // The file is as the manifest says, so a difference here is in the manifest itself.
  if (found != manifest.state_sha256) {
    damaged_checkpoint(
        checkpoint + "/" + kManifestFile,
        fmt::format("the state's hash is {}, it says {}", found, manifest.state_sha256));
  }
  return manifest.counters;
}

void load_checkpoint(const std::string& checkpoint, State& state) {
  std::vector<StatePiece> pieces;
  for (size_t e = 0; e < state.entries.size(); ++e) {
    const std::span<float> values = state.entries[e].values;
    pieces.push_back({e, {0, static_cast<int64_t>(values.size())}, values});
  }
  state.counters = load_checkpoint(checkpoint, source_of(state).entries, pieces);
}

std::string latest_checkpoint(const std::string& folder) {
  // The link is not asked: it may be missing where a folder was copied. A folder without a manifest
  // is no checkpoint.
  std::string newest;
  int64_t highest = -1;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const int64_t step = step_of(it->path().filename().string());
    if (step > highest && path_exists(it->path().string() + "/" + kManifestFile)) {
      highest = step;
      newest = it->path().string();
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(fmt::format("read {}: {}", folder, error.message()));
  }
  return newest;
}

}  // namespace tutti
