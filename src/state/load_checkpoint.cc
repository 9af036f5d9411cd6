#include "state/load_checkpoint.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace tutti {

namespace {

/// The file, if it is the one that the manifest was written for: first its size, which is cheap and
/// names a truncated file, then its header.
TensorFile open_saved(const std::string& path, const SavedFile& saved) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) throw_errno("open", path);
  if (info.st_size != saved.bytes)
    damaged_checkpoint(
        path, fmt::format("{} bytes where the manifest says {}{}", info.st_size, saved.bytes,
                          info.st_size < saved.bytes ? ": truncated" : ""));
  TensorFile file = [&] {
    try {
      return open_safetensors(path);
    } catch (const Error& error) {
      const std::string said = error.what();
      if (!said.starts_with(path + ": ") || said.starts_with(path + ": damaged")) throw;
      damaged_checkpoint(path, said.substr(path.size() + 2));
    }
  }();
  if (sha256(std::as_bytes(std::span(file.header))) != saved.header)
    damaged_checkpoint(path, "its header is not the one that the manifest was written for");
  return file;
}

/// What a job calls it: a parameter needs no slot.
std::string called(const EntryShape& entry) {
  return entry.slot == kParameterSlot ? entry.name : title(entry);
}

/// The entries of the job among those of the checkpoint. All that do not match are named at once.
std::vector<const SavedEntry*> matched(const CheckpointReader& reader,
                                       const std::vector<EntryShape>& entries) {
  std::map<std::pair<std::string, std::string>, const SavedEntry*> found;
  for (const SavedEntry& saved : reader.entries())
    found[{saved.shape.name, saved.shape.slot}] = &saved;
  std::vector<std::string> faults;
  std::vector<const SavedEntry*> all;
  for (const EntryShape& entry : entries) {
    auto node = found.extract({entry.name, entry.slot});
    if (node.empty()) {
      faults.push_back(fmt::format("{} is missing", called(entry)));
    } else if (node.mapped()->shape.dims != entry.dims) {
      faults.push_back(fmt::format("{} is [{}], the job has [{}]", called(entry),
                                   fmt::join(node.mapped()->shape.dims, ","),
                                   fmt::join(entry.dims, ",")));
    } else {
      all.push_back(node.mapped());
    }
  }
  for (const auto& [name, saved] : found)
    faults.push_back(fmt::format("{} is not in the job", called(saved->shape)));
  if (!faults.empty())
    throw Error(fmt::format("{}: {} tensors do not match the job:\n  {}", reader.path(),
                            faults.size(), fmt::join(faults, "\n  ")));
  return all;
}

/// The manifest's hashes go together in the order of the state's entries, or it was altered.
void check_state_hash(const CheckpointReader& reader,
                      std::span<const SavedEntry* const> in_model_order) {
  const Manifest& manifest = reader.manifest();
  StateHasher hasher(in_model_order.size());
  for (const SavedEntry* entry : in_model_order) hasher.add(entry->shape, entry->ranges);
  if (const std::string hash = hasher.finish(manifest.counters); hash != manifest.state_sha256)
    damaged_checkpoint(
        reader.path() + "/" + kManifestFile,
        fmt::format("the state's hash is {}, it says {}", hash, manifest.state_sha256));
}

}  // namespace

Range SavedEntry::range(size_t number) const {
  return hashed_range(static_cast<int64_t>(number) * kHashedRange, shape);
}

CheckpointReader::CheckpointReader(const std::string& checkpoint)
    : path_(checkpoint), manifest_(read_manifest(checkpoint)) {
  const std::string path = checkpoint + "/" + kManifestFile;

  // Tensors of all files, by name and then by file: so the slots of a parameter come together.
  std::map<std::string, std::vector<SavedEntry>> by_name;
  std::vector<std::string> names;
  for (const SavedFile& saved : manifest_.files) {
    const size_t end = saved.name.rfind(".safetensors");
    if (saved.name.find('/') != std::string::npos || end == std::string::npos)
      damaged_checkpoint(path, fmt::format("{} is no name of a file of tensors", saved.name));
    const std::string slot =
        saved.name == kParametersFile ? kParameterSlot : saved.name.substr(0, end);
    files_.push_back(open_saved(checkpoint + "/" + saved.name, saved));
    std::map<std::string, const PlacedTensor*> placed;
    for (const PlacedTensor& tensor : files_.back().tensors) placed[tensor.shape.name] = &tensor;

    for (const SavedTensor& tensor : saved.tensors) {
      const auto it = placed.find(tensor.name);
      if (it == placed.end() || it->second->type != "F32")
        damaged_checkpoint(path,
                           fmt::format("{} is no float32 tensor of {}", tensor.name, saved.name));
      const PlacedTensor& at = *it->second;
      SavedEntry entry{
          {tensor.name, slot, at.shape.dims}, files_.size() - 1, at.begin, tensor.ranges};
      if (static_cast<int64_t>(entry.ranges.size()) !=
          (entry.size() + kHashedRange - 1) / kHashedRange)
        damaged_checkpoint(path, fmt::format("it has not the hashes of {}", called(entry.shape)));
      auto& slots = by_name[tensor.name];
      if (slots.empty()) names.push_back(tensor.name);
      slots.push_back(std::move(entry));
    }
    if (saved.tensors.size() != placed.size())
      damaged_checkpoint(path, fmt::format("it names {} of the {} tensors of {}",
                                           saved.tensors.size(), placed.size(), saved.name));
  }
  for (const std::string& name : names)
    for (SavedEntry& entry : by_name[name]) entries_.push_back(std::move(entry));
}

std::span<const float> CheckpointReader::read(const SavedEntry& entry, size_t number) {
  buffer_.resize(static_cast<size_t>(entry.range(number).size()));
  const Wanted wanted{entry, number, buffer_};
  read({&wanted, 1});
  return buffer_;
}

void CheckpointReader::read(std::span<const Wanted> ranges) const {
  const auto path = [&](const Wanted& wanted) {
    return path_ + "/" + manifest_.files[wanted.entry.file].name;
  };
  std::vector<std::span<const std::byte>> bytes;
  for (const Wanted& wanted : ranges) {
    read_at(files_[wanted.entry.file].fd.get(), std::as_writable_bytes(wanted.values),
            wanted.entry.offset +
                wanted.entry.range(wanted.number).begin * static_cast<int64_t>(sizeof(float)),
            path(wanted));
    bytes.push_back(std::as_bytes(wanted.values));
  }
  const std::vector<Digest> digests = sha256_each(bytes);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Wanted& wanted = ranges[i];
    const Range range = wanted.entry.range(wanted.number);
    if (digests[i] != wanted.entry.ranges[wanted.number])
      damaged_checkpoint(
          path(wanted),
          fmt::format("elements {} to {} of {} are not those that the manifest was written for",
                      range.begin, range.end, wanted.entry.shape.name));
  }
}

std::string fault_of_checkpoint(const std::string& checkpoint) {
  try {
    CheckpointReader reader(checkpoint);
    std::vector<const SavedEntry*> all;
    for (const SavedEntry& entry : reader.entries()) all.push_back(&entry);
    check_state_hash(reader, all);
    for (const SavedEntry& entry : reader.entries())
      for (size_t r = 0; r < entry.ranges.size(); ++r) reader.read(entry, r);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

StateCounters load_checkpoint(const std::string& checkpoint, const std::vector<EntryShape>& entries,
                              std::span<const StatePiece> pieces) {
  CheckpointReader reader(checkpoint);
  const std::vector<const SavedEntry*> saved = matched(reader, entries);

  check_state_hash(reader, saved);

  // Ranges that a piece has whole are read to their place, two at a time, since two are hashed side
  // by side; of others a part is copied there.
  std::vector<CheckpointReader::Wanted> pair;
  const auto read_pair = [&] {
    reader.read(pair);
    pair.clear();
  };
  for (const StatePiece& piece : pieces) {
    const SavedEntry& entry = *saved[piece.entry];
    for (int64_t at = piece.range.begin; at < piece.range.end;) {
      const auto number = static_cast<size_t>(at / kHashedRange);
      const Range range = entry.range(number);
      const int64_t end = std::min(range.end, piece.range.end);
      const std::span<float> place = piece.values.subspan(
          static_cast<size_t>(at - piece.range.begin), static_cast<size_t>(end - at));
      if (Range{at, end} == range) {
        pair.push_back({entry, number, place});
        if (pair.size() == 2) read_pair();
      } else {
        const std::span<const float> values = reader.read(entry, number);
        std::copy_n(values.begin() + (at - range.begin), place.size(), place.begin());
      }
      at = end;
    }
  }
  read_pair();
  return reader.manifest().counters;
}

void load_checkpoint(const std::string& checkpoint, State& state) {
  std::vector<StatePiece> pieces;
  for (size_t e = 0; e < state.entries.size(); ++e) {
    const std::span<float> values = state.entries[e].values;
    pieces.push_back({e, {0, static_cast<int64_t>(values.size())}, values});
  }
  state.counters = load_checkpoint(checkpoint, shapes_of(state), pieces);
}

}  // namespace tutti
