// The version is looked at before anything else, so a manifest of another version is named as that
// and not as damaged.
#include "state/manifest.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text/message.h"

namespace tutti {

using nlohmann::json;

std::string file_of_slot(const std::string& slot) {
  return slot == kParameterSlot ? kParametersFile : slot + ".safetensors";
}

std::string way_around(const std::string& checkpoint) {
  return fmt::format(
      "remove the folder {}, or resume with --newest-valid, to go on from the checkpoint before it",
      checkpoint);
}

void damaged_checkpoint(const std::string& file, const std::string& why) {
  throw Error(
      fmt::format("{}: damaged: {}; {}", file, why, way_around(file.substr(0, file.rfind('/')))));
}

void write_manifest(const std::string& checkpoint, const Manifest& manifest) {
  json files = json::array();
  for (const SavedFile& file : manifest.files) {
    json tensors = json::array();
    for (const SavedTensor& tensor : file.tensors) {
      json ranges = json::array();
      for (const Digest& digest : tensor.ranges) ranges.push_back(hex(digest));
      tensors.push_back({{"name", tensor.name}, {"sha256", ranges}});
    }
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {"header_sha256", hex(file.header)},
                     {"tensors", tensors}});
  }
  const json text = {
      {"version", kManifestVersion},
      {"step", manifest.counters.step},
      {"cursor", manifest.counters.cursor},
      {"schedule", manifest.counters.schedule},
      {"state_sha256", manifest.state_sha256},
      {"files", files},
      {"build", manifest.build},
      {"job", manifest.job_toml},
  };
  // A job may contain bytes that are no UTF-8; they are replaced, since JSON cannot carry them.
  write_file_atomic(checkpoint + "/" + kManifestFile,
                    text.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
}

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestFile;
  const auto digest = [&](const json& text) {
    const std::optional<Digest> found = from_hex(text.get<std::string>());
    if (!found) damaged_checkpoint(path, fmt::format("{} is no SHA-256", text.dump()));
    return *found;
  };
  try {
    const json text = json::parse(read_file(path));
    if (const json& version = text.at("version"); version != kManifestVersion)
      throw Error(fmt::format(
          "{}: version {}, written by {} program; this one reads version {}", path, version.dump(),
          version < kManifestVersion ? "an older" : "a newer", kManifestVersion));
    Manifest manifest{.counters = {text.at("step").get<int64_t>(), text.at("cursor").get<int64_t>(),
                                   text.at("schedule").get<std::string>()},
                      .state_sha256 = text.at("state_sha256").get<std::string>(),
                      .files = {},
                      .job_toml = text.at("job").get<std::string>(),
                      .build = text.value("build", "")};
    for (const json& told : text.at("files")) {
      SavedFile file{told.at("name").get<std::string>(),
                     told.at("bytes").get<int64_t>(),
                     digest(told.at("header_sha256")),
                     {}};
      for (const json& tensor : told.at("tensors")) {
        SavedTensor& saved = file.tensors.emplace_back(tensor.at("name").get<std::string>());
        for (const json& range : tensor.at("sha256")) saved.ranges.push_back(digest(range));
      }
      manifest.files.push_back(std::move(file));
    }
    return manifest;
  } catch (const json::exception& fault) {
    damaged_checkpoint(path, json_fault(fault));
  }
}

}  // namespace tutti
