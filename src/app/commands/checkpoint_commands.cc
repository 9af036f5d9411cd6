#include "app/commands/checkpoint_commands.h"

#include <fmt/ranges.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text/terminal.h"
#include "state/checkpoint.h"
#include "state/load_checkpoint.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

std::string checkpoint_at(const std::string& path) {
  if (path_exists(path + "/" + kManifestFile)) return path;
  return checkpoint_of(open_run(path));
}

std::string shape_text(const EntryShape& shape) {
  return fmt::format("[{}]", fmt::join(shape.dims, ", "));
}

/// Of all elements, in float64 and in order.
double norm_of(CheckpointReader& reader, const SavedEntry& entry) {
  double squares = 0;
  for (size_t r = 0; r < entry.ranges.size(); ++r)
    for (const float x : reader.read(entry, r))
      squares += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(squares);
}

std::string hash_of(const SavedEntry& entry) {
  Sha256 sha;
  for (const Digest& digest : entry.ranges) sha.add(std::as_bytes(std::span(digest)));
  return hex(sha.finish()).substr(0, 12);
}

/// The saved steps of a run, and where they are; a checkpoint alone is one.
std::map<int64_t, std::string> saved_steps(const std::string& path) {
  if (path_exists(path + "/" + kManifestFile)) return {{read_manifest(path).counters.step, path}};
  std::map<int64_t, std::string> steps;
  for (const auto& [step, checkpoint] : complete_checkpoints(open_run(path).checkpoints()))
    steps.emplace(step, checkpoint);
  if (steps.empty()) throw Error(fmt::format("{}: it has no checkpoint", path));
  return steps;
}

/// Where two ranges of values differ, in words; empty where nowhere. NaN is equal to the same NaN:
/// bits are compared.
std::string difference(std::span<const float> x, std::span<const float> y, int64_t first) {
  size_t differ = 0, at = 0;
  double largest = 0;
  for (size_t i = x.size(); i-- > 0;) {
    if (std::memcmp(&x[i], &y[i], sizeof(float)) == 0) continue;
    ++differ;
    at = i;
    largest = std::max(largest, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
  }
  if (differ == 0) return "";
  return fmt::format(
      "element {} is {} and {}; {} of the elements {} to {} differ, by {:.3g} at most",
      first + static_cast<int64_t>(at), x[at], y[at], differ, first,
      first + static_cast<int64_t>(x.size()), largest);
}

/// The first thing in which two checkpoints differ; empty where they are equal.
std::string difference(const std::string& path_a, const std::string& path_b) {
  CheckpointReader a(path_a), b(path_b);
  const StateCounters &x = a.manifest().counters, &y = b.manifest().counters;
  if (x.step != y.step) return fmt::format("step {} and step {}", x.step, y.step);
  if (x.cursor != y.cursor) return fmt::format("data cursor {} and {}", x.cursor, y.cursor);

  // Which tensors there are comes before what is in them.
  std::map<std::pair<std::string, std::string>, const SavedEntry*> others;
  for (const SavedEntry& entry : b.entries()) others[{entry.shape.name, entry.shape.slot}] = &entry;
  std::vector<std::pair<const SavedEntry*, const SavedEntry*>> pairs;
  for (const SavedEntry& mine : a.entries()) {
    const auto node = others.extract({mine.shape.name, mine.shape.slot});
    if (node.empty()) return fmt::format("{} is in the first alone", title(mine.shape));
    pairs.emplace_back(&mine, node.mapped());
    if (mine.shape.dims != pairs.back().second->shape.dims)
      return fmt::format("{} is {} and {}", title(mine.shape), shape_text(mine.shape),
                         shape_text(pairs.back().second->shape));
  }
  if (!others.empty())
    return fmt::format("{} is in the second alone", title(others.begin()->second->shape));

  for (const auto& [mine, other] : pairs) {
    for (size_t r = 0; r < mine->ranges.size(); ++r) {
      if (mine->ranges[r] == other->ranges[r]) continue;
      return fmt::format("{}: {}", title(mine->shape),
                         difference(a.read(*mine, r), b.read(*other, r), mine->range(r).begin));
    }
  }
  if (x.schedule != y.schedule)
    return fmt::format("the state of the schedule: {} and {}", x.schedule, y.schedule);
  return "";
}

}  // namespace

int inspect_command(const std::string& path) {
  CheckpointReader reader(checkpoint_at(path));
  const Manifest& manifest = reader.manifest();
  std::string text =
      fmt::format("{}\nstep {}, data cursor {}, state sha256 {}\n", reader.path(),
                  manifest.counters.step, manifest.counters.cursor, manifest.state_sha256);
  if (!manifest.build.empty()) text += fmt::format("saved by tutti {}\n", manifest.build);
  text += "\n";
  for (const SavedFile& file : manifest.files)
    text += fmt::format("{:28} {:>10}  {} tensors\n", file.name, bytes_text(file.bytes),
                        file.tensors.size());

  // Every value is read for its norm, and so compared with its hash.
  size_t width = 6;
  for (const SavedEntry& entry : reader.entries()) width = std::max(width, entry.shape.name.size());
  text += fmt::format("\n{:{}}  {:10} {:>16} {:>12}  {}\n", "tensor", width, "slot", "shape",
                      "norm", "sha256");
  for (const SavedEntry& entry : reader.entries())
    text += fmt::format("{:{}}  {:10} {:>16} {:>12.6g}  {}\n", entry.shape.name, width,
                        entry.shape.slot, shape_text(entry.shape), norm_of(reader, entry),
                        hash_of(entry));
  show(stdout, text);
  return 0;
}

int diff_command(const std::string& a, const std::string& b) {
  const auto mine = saved_steps(a), others = saved_steps(b);

  // Two checkpoints are compared whatever their steps.
  if (mine.size() == 1 && others.size() == 1) {
    const std::string found = difference(mine.begin()->second, others.begin()->second);
    show(stdout, found.empty() ? "equal\n" : found + "\n");
    return found.empty() ? 0 : 1;
  }
  int compared = 0;
  for (const auto& [step, path] : mine) {
    const auto other = others.find(step);
    if (other == others.end()) continue;
    ++compared;
    const std::string found = difference(path, other->second);
    if (found.empty()) continue;
    show(stdout, fmt::format("step {} is the first that differs: {}\n", step, found));
    return 1;
  }
  if (compared == 0) throw Error(fmt::format("{} and {} have saved no step in common", a, b));
  show(stdout, compared == 1
                   ? "equal at the one step that both have saved\n"
                   : fmt::format("equal at all {} steps that both have saved\n", compared));
  return 0;
}

int export_command(const std::string& path, const std::string& out) {
  refuse_bad_output(out);
  CheckpointReader reader(checkpoint_at(path));
  std::vector<TensorShape> tensors;
  std::vector<const SavedEntry*> entries;
  for (const SavedEntry& entry : reader.entries()) {
    if (entry.shape.slot != kParameterSlot) continue;
    entries.push_back(&entry);
    tensors.push_back({entry.shape.name, entry.shape.dims});
  }

  // The file appears when it is whole.
  const std::string writing = out + fmt::format(".{}.part", ::getpid());
  std::vector<float> values;
  try {
    write_safetensors(writing, tensors, [&](size_t t) {
      values.clear();
      for (size_t r = 0; r < entries[t]->ranges.size(); ++r) {
        const std::span<const float> range = reader.read(*entries[t], r);
        values.insert(values.end(), range.begin(), range.end());
      }
      return std::span<const float>(values);
    });
    if (::rename(writing.c_str(), out.c_str()) != 0) throw_errno("rename onto", out);
  } catch (...) {
    ::unlink(writing.c_str());
    throw;
  }
  show(stdout, fmt::format("{}: {} tensors of step {}\n", out, tensors.size(),
                           reader.manifest().counters.step));
  return 0;
}

}  // namespace tutti
