// The version is looked at before anything else, so a manifest of another version is named as that
// and not as damaged.
#include "state/manifest.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text/message.h"

namespace tutti {

using nlohmann::json;

void write_manifest(const std::string& checkpoint, const Manifest& manifest) {
  const json files = {
      {kStateFile, {{"bytes", manifest.state_file.bytes}, {"sha256", manifest.state_file.sha256}}},
  };
  const json text = {
      {"version", kManifestVersion},
      {"step", manifest.counters.step},
      {"cursor", manifest.counters.cursor},
      {"schedule", manifest.counters.schedule},
      {"state_sha256", manifest.state_sha256},
      {"files", files},
      {"job", manifest.job_toml},
  };
  // A job may contain bytes that are no UTF-8; they are replaced, since JSON cannot carry them.
  write_file_atomic(checkpoint + "/" + kManifestFile,
                    text.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

Manifest read_manifest(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestFile;
  try {
    const json text = json::parse(read_file(path));
    if (const json& version = text.at("version"); version != kManifestVersion) {
      throw Error(fmt::format("{}: version {}; this program reads version {}", path, version.dump(),
                              kManifestVersion));
    }
    const json& file = text.at("files").at(kStateFile);
    return {
        .counters = {text.at("step").get<int64_t>(), text.at("cursor").get<int64_t>(),
                     text.at("schedule").get<std::string>()},
        .state_sha256 = text.at("state_sha256").get<std::string>(),
        .state_file = {file.at("bytes").get<int64_t>(), file.at("sha256").get<std::string>()},
        .job_toml = text.at("job").get<std::string>(),
    };
  } catch (const json::exception& fault) {
    damaged_checkpoint(path, json_fault(fault));
  }
}

}  // namespace tutti
