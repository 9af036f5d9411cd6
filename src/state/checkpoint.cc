// Everything is first written and synced under hidden names (.writing, .latest); then two renames
// show it. What can fail for want of space comes before the first of them. Ranks tell each other
// after each stage whether it went well, so that all of them go on or none.
#include "state/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "state/safetensors.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr size_t kAtOnce = 2;  // parts

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw Error(fmt::format("create {}: {}", path, error.message()));
}

/// The hidden names of a save. They are removed when it ends, however it ends, and before it
/// begins, if a save before was killed.
struct Hidden {
  explicit Hidden(const std::string& folder)
      : writing(folder + "/.writing"),
        latest(folder + "/.latest"),
        removing(folder + "/.removing") {
    remove();
  }
  ~Hidden() { remove(); }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;
  void remove() const {
    // what is in the way of a later save is named there
    std::error_code ignored;
    fs::remove_all(writing, ignored);
    fs::remove_all(removing, ignored);
    fs::remove(latest, ignored);
  }
  const std::string writing, latest, removing;
};

void link_to(const std::string& name, const std::string& link) {
  if (symlink(name.c_str(), link.c_str()) != 0) throw_errno("create", link);
}
void rename_onto(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) throw_errno("rename onto", to);
}

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

/// The files of a state: one for each slot, in the order in which the entries name them, and in it
/// the entries of that slot in their order.
struct StateFile {
  std::string name, header;
  int64_t bytes = 0;
};
struct StateFiles {
  struct Place {
    size_t file;
    int64_t offset;  ///< of its first element
  };
  std::vector<StateFile> files;
  std::vector<Place> places;  ///< by entry
};
StateFiles files_of(const std::vector<EntryShape>& entries) {
  StateFiles all;
  std::vector<std::vector<TensorShape>> tensors;
  for (const EntryShape& entry : entries) {
    const std::string name = file_of_slot(entry.slot);
    size_t f = 0;
    while (f < all.files.size() && all.files[f].name != name) ++f;
    if (f == all.files.size()) {
      all.files.push_back({name, "", 0});
      tensors.emplace_back();
    }
    all.places.push_back({f, all.files[f].bytes});
    tensors[f].push_back({entry.name, entry.dims});
    all.files[f].bytes += tensors[f].back().bytes();
  }

  // Headers can be made when all tensors are known, and move everything behind them.
  for (size_t f = 0; f < all.files.size(); ++f) {
    all.files[f].header = safetensors_header(tensors[f]);
    all.files[f].bytes += static_cast<int64_t>(all.files[f].header.size());
  }
  for (StateFiles::Place& place : all.places)
    place.offset += static_cast<int64_t>(all.files[place.file].header.size());
  return all;
}
int64_t offset_of(const StateFiles::Place& place, int64_t element) {
  return place.offset + element * static_cast<int64_t>(sizeof(float));
}

/// Runs a stage of this rank and tells the others what it has to say, or how it failed. Returns what
/// all said; throws on all ranks what failed on the first that did.
std::vector<std::string> agree(const TellAll& tell_all, const std::function<std::string()>& stage) {
  std::string mine = "+";
  try {
    mine += stage();
  } catch (const Error& error) {
    mine = fmt::format("-{}", error.what());
  }
  std::vector<std::string> all = tell_all(mine);
  for (std::string& said : all) {
    if (said.starts_with('-')) throw Error(said.substr(1));
    said.erase(0, 1);
  }
  return all;
}

/// Writes this rank's parts. Returns their digests, one after the other.
std::string write_parts(const std::string& folder, const StateFiles& files,
                        const CheckpointWriter& writer) {
  std::vector<size_t> mine;
  for (size_t p = 0; p < writer.parts.size(); ++p)
    if (writer.parts[p].writer == writer.rank) mine.push_back(p);

  // A few at a time are hashed, two side by side, and written while they are in the cache.
  std::map<size_t, RangeWriter> open;
  std::string digests;
  for (size_t at = 0; at < mine.size(); at += kAtOnce) {
    const auto some = std::span(mine).subspan(at, std::min(kAtOnce, mine.size() - at));
    std::vector<std::span<const std::byte>> values;
    for (const size_t p : some) values.push_back(std::as_bytes(writer.values(p)));
    for (const Digest& digest : sha256_each(values))
      digests.append(reinterpret_cast<const char*>(digest.data()), digest.size());
    for (size_t i = 0; i < some.size(); ++i) {
      const SavedPart& part = writer.parts[some[i]];
      const StateFiles::Place& place = files.places[part.entry];
      auto file = open.find(place.file);
      if (file == open.end())
        file = open.try_emplace(place.file, folder + "/" + files.files[place.file].name, 0).first;
      file->second.write(values[i], offset_of(place, part.range.begin));
    }
  }
  for (auto& [place, file] : open) file.sync();
  return digests;
}

/// What all ranks told of their parts, as the digests of each entry's hashed ranges. A range that
/// several of them wrote is read again.
std::vector<std::vector<Digest>> joined_digests(const std::string& folder, const StateFiles& files,
                                                const CheckpointWriter& writer,
                                                const std::vector<std::string>& told) {
  std::vector<std::vector<Digest>> all(writer.entries.size());
  std::vector<size_t> taken(told.size());
  std::map<size_t, Fd> written;
  std::vector<float> buffer;
  for (const SavedPart& part : writer.parts) {
    Digest digest;
    const auto w = static_cast<size_t>(part.writer);
    TUTTI_CHECK(told[w].size() >= taken[w] + digest.size(), "rank {} told of too few parts", w);
    std::memcpy(digest.data(), told[w].data() + taken[w], digest.size());
    taken[w] += digest.size();

    const Range range = hashed_range(part.range.begin, writer.entries[part.entry]);
    if (part.range != range) {
      if (part.range.begin != range.begin) continue;
      const StateFiles::Place& place = files.places[part.entry];
      const std::string path = folder + "/" + files.files[place.file].name;
      Fd& fd = written[place.file];
      if (!fd) fd.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (!fd) throw_errno("open", path);
      buffer.resize(static_cast<size_t>(range.size()));
      read_at(fd.get(), std::as_writable_bytes(std::span(buffer)), offset_of(place, range.begin),
              path);
      digest = sha256(std::as_bytes(std::span(buffer)));
    }
    all[part.entry].push_back(digest);
  }
  return all;
}

void take_away(const std::string& folder, const std::string& checkpoint) {
  const Hidden hidden(folder);  // removes it in the end
  if (rename(checkpoint.c_str(), hidden.removing.c_str()) != 0) throw_errno("remove", checkpoint);
}

Manifest manifest_of(const StateFiles& files, const std::vector<EntryShape>& entries,
                     const std::vector<std::vector<Digest>>& digests, const SaveRequest& request) {
  Manifest manifest{request.counters, "", {}, request.job_toml, request.build};
  for (const StateFile& file : files.files)
    manifest.files.push_back(
        {file.name, file.bytes, sha256(std::as_bytes(std::span(file.header))), {}});
  StateHasher hasher(entries.size());
  for (size_t e = 0; e < entries.size(); ++e) {
    hasher.add(entries[e], digests[e]);
    manifest.files[files.places[e].file].tensors.push_back({entries[e].name, digests[e]});
  }
  manifest.state_sha256 = hasher.finish(request.counters);
  return manifest;
}

}  // namespace

std::string save_checkpoint(const SaveRequest& request, const CheckpointWriter& writer) {
  const std::string& folder = request.folder;
  const std::string name = fmt::format("{}{:08}", kPrefix, request.counters.step);
  std::string path = folder + "/" + name;
  const StateFiles files = files_of(writer.entries);
  std::optional<Hidden> hidden;
  const std::string writing = folder + "/.writing";

  // The first rank makes the files, with room for everything.
  agree(writer.tell_all, [&] {
    if (writer.rank != 0) return "";
    make_folder(folder);
    hidden.emplace(folder);
    if (mkdir(writing.c_str(), 0777) != 0) throw_errno("create", writing);
    for (const StateFile& file : files.files)
      RangeWriter(writing + "/" + file.name, file.bytes)
          .write(std::as_bytes(std::span(file.header)), 0);
    return "";
  });
  const std::vector<std::string> told =
      agree(writer.tell_all, [&] { return write_parts(writing, files, writer); });

  // The rest that needs space: the manifest and the link, each of them synced.
  agree(writer.tell_all, [&] {
    if (writer.rank != 0) return "";
    write_manifest(writing, manifest_of(files, writer.entries,
                                        joined_digests(writing, files, writer, told), request));
    link_to(name, hidden->latest);
    sync_directory(folder);

    // The folder appears before the link to it, and both are synced in the end. A kill in between
    // leaves a link to the checkpoint before.
    show(writing, path);
    rename_onto(hidden->latest, folder + "/latest");
    sync_directory(folder);
    if (request.prune) request.prune(path);
    return "";
  });
  return path;
}

std::string save_checkpoint(const std::string& folder, const State& state,
                            const std::string& job_toml) {
  const std::vector<EntryShape> entries = shapes_of(state);
  std::vector<SavedPart> parts;
  for (size_t e = 0; e < entries.size(); ++e) {
    const int64_t size = entries[e].size();
    TUTTI_CHECK(static_cast<int64_t>(state.entries[e].values.size()) == size,
                "{} has {} values, not {}", entries[e].name, state.entries[e].values.size(), size);
    for (int64_t begin = 0; begin < size; begin = parts.back().range.end)
      parts.push_back({e, hashed_range(begin, entries[e]), 0});
  }
  const auto values = [&](size_t part) {
    const Range range = parts[part].range;
    return std::span<const float>(state.entries[parts[part].entry].values)
        .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
  };
  const auto alone = [](const std::string& mine) { return std::vector<std::string>{mine}; };
  return save_checkpoint({.folder = folder, .counters = state.counters, .job_toml = job_toml},
                         {entries, parts, values, 0, alone});
}

void keep_last(const std::string& folder, int64_t count) {
  auto all = complete_checkpoints(folder);
  while (static_cast<int64_t>(all.size()) > count) {
    take_away(folder, all.begin()->second);
    all.erase(all.begin());
  }
}

void keep_only(const std::string& folder, const std::string& kept) {
  for (const auto& [step, path] : complete_checkpoints(folder))
    if (path != kept) take_away(folder, path);
}

std::map<int64_t, std::string> checkpoint_folders(const std::string& folder) {
  std::map<int64_t, std::string> all;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (const int64_t step = step_of(it->path().filename().string()); step >= 0)
      all.emplace(step, it->path().string());
  if (error && error != std::errc::no_such_file_or_directory)
    throw Error(fmt::format("read {}: {}", folder, error.message()));
  return all;
}

std::map<int64_t, std::string> complete_checkpoints(const std::string& folder) {
  // The link is not asked: it may be missing where a folder was copied. A folder without a manifest
  // is no checkpoint.
  auto all = checkpoint_folders(folder);
  std::erase_if(all, [](const auto& checkpoint) {
    return !path_exists(checkpoint.second + "/" + kManifestFile);
  });
  return all;
}

void link_latest(const std::string& folder, const std::string& checkpoint) {
  const Hidden hidden(folder);
  link_to(checkpoint.substr(checkpoint.rfind('/') + 1), hidden.latest);
  rename_onto(hidden.latest, folder + "/latest");
  sync_directory(folder);
}

std::string checkpoint_of_step(const std::string& folder, int64_t step) {
  const auto all = complete_checkpoints(folder);
  if (const auto found = all.find(step); found != all.end()) return found->second;
  throw Error(fmt::format("{}: there is no checkpoint of step {}{}", folder, step,
                          all.empty() ? ""
                                      : fmt::format("; the last of {} is of step {}", all.size(),
                                                    all.rbegin()->first)));
}

std::string latest_checkpoint(const std::string& folder) {
  const auto all = complete_checkpoints(folder);
  return all.empty() ? "" : all.rbegin()->second;
}

}  // namespace tutti
