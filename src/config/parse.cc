// From TOML text to a Job: defaults, then the base, then the file, then the settings. Every fault
// is collected, none stops.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/text/message.h"
#include "config/builtin.h"
#include "config/job.h"
#include "config/nearest.h"
#include "config/not_yet.h"
#include "config/schema.h"
#include "config/toml.h"

namespace tutti {

namespace {

std::vector<std::string> builtin_names() {
  std::vector<std::string> names;
  for (const auto& file : builtin_files()) names.emplace_back(file.name);
  return names;
}

const BuiltinFile* find_builtin(std::string_view name) {
  for (const auto& file : builtin_files()) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

std::string unknown_builtin(const std::string& name) {
  return fmt::format("{}; built-in jobs: {}", did_you_mean(nearest(name, builtin_names())),
                     fmt::join(builtin_names(), ", "))
      .substr(2);
}

/// A key that stands in another section since it was first written.
struct MovedKey {
  std::string_view section, name, to, why;
};
constexpr MovedKey kMovedKeys[] = {
    {"numerics", "isa", "layout", "it changes the speed, not the result"},
};

/// What is being built, and all that is wrong with it so far.
struct Parse {
  Job job;
  std::vector<std::string> faults;

  void set(const Key& key, const TomlEntry& entry, const std::string& place, Origin origin);
  void read_file(std::string_view text, const std::string& source, bool builtin, int depth);
  void read_entry(const TomlEntry& entry, const std::string& source, bool builtin, int depth);
  void read_top(const TomlEntry& entry, const std::string& place, int depth);
  void read_setting(const Setting& setting);
  /// The section that a key is in now; a note where that is another one.
  std::string section_of(const std::string& section, const std::string& name,
                         const std::string& place);
  /// True of a key or a section that is still to come: there is nothing else to say of it.
  bool refuse_later(const std::string& section, const std::string& name,
                    const std::optional<Value>& value, const std::string& place);
};

void Parse::set(const Key& key, const TomlEntry& entry, const std::string& place, Origin origin) {
  // With --set an integer that 64 bits do not hold has been read as a bare word.
  const auto value = entry.value ? convert(key, *entry.value) : std::nullopt;
  const auto* word = entry.value ? std::get_if<std::string>(&*entry.value) : nullptr;
  const bool digits =
      word && !word->empty() && word->find_first_not_of("+-0123456789") == std::string::npos;

  // A key has one fault at most: that of its range is only asked of a value of its type.
  if (!value && digits && key.type() == ValueType::kInteger) {
    const std::string range = key.limits.text();
    faults.push_back(fmt::format("{}: {} = {} is out of range: it must be {}{}", place,
                                 key.full_name(), *word, range,
                                 std::isfinite(key.limits.high) ? "" : " and below 2^63"));
  } else if (!value) {
    const std::string wanted = type_name(key.type()) + (key.automatic ? " or \"auto\"" : "");
    faults.push_back(fmt::format("{}: {} must be {}, not {}", place, key.full_name(), wanted,
                                 entry.value ? value_text(*entry.value) : entry.kind));
  } else if (const std::string fault = fault_of(key, *value); !fault.empty()) {
    faults.push_back(place + ": " + fault);
  } else {
    key.set(job, *value);
    job.origin[key.full_name()] = std::move(origin);
  }
}

void Parse::read_file(std::string_view text, const std::string& source, bool builtin, int depth) {
  TomlDocument document = read_toml(text);
  if (!document.fault.empty()) {
    faults.push_back(
        fmt::format("{}:{}: not TOML: {}", source, document.fault_line, document.fault));
  }

  // Wherever it stands, the base comes first: what the file says overrides it.
  auto& entries = document.entries;
  std::stable_partition(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.section.empty() && entry.key == "base";
  });
  for (const auto& entry : entries) read_entry(entry, source, builtin, depth);
}

std::string Parse::section_of(const std::string& section, const std::string& name,
                              const std::string& place) {
  for (const MovedKey& moved : kMovedKeys) {
    if (moved.section != section || moved.name != name) continue;
    job.notes.push_back(
        fmt::format("{}: {}.{} is {}.{} now: {}", place, section, name, moved.to, name, moved.why));
    return std::string(moved.to);
  }
  return section;
}

void Parse::read_entry(const TomlEntry& written, const std::string& source, bool builtin,
                       int depth) {
  const std::string place = fmt::format("{}:{}", source, written.line);
  TomlEntry entry = written;
  entry.section = section_of(entry.section, entry.key, place);
  const auto is_section = [](const std::string& name) {
    return std::any_of(sections().begin(), sections().end(),
                       [&](const auto& section) { return section.name == name; });
  };
  if (entry.section.empty()) return read_top(entry, place, depth);
  if (refuse_later(entry.section, entry.key, entry.value, place)) return;

  // An unknown section is one fault, not one for each of its keys.
  if (!is_section(entry.section) && !later_section(entry.section)) {
    if (!entry.key.empty()) return;
    const std::string near = nearest_section(entry.section);
    return faults.push_back(fmt::format("{}: unknown section [{}]{}", place, entry.section,
                                        did_you_mean(near.empty() ? "" : "[" + near + "]")));
  }
  if (entry.key.empty()) return;

  // What a built-in job says does not come from a line that the user could mend.
  if (const Key* key = find_key(entry.section, entry.key))
    return set(
        *key, entry, place,
        builtin ? Origin{Origin::Kind::kBuiltin, source} : Origin{Origin::Kind::kFile, place});
  faults.push_back(fmt::format("{}: unknown key {}.{}{}", place, entry.section, entry.key,
                               did_you_mean(nearest_key(entry.section, entry.key))));
}

bool Parse::refuse_later(const std::string& section, const std::string& name,
                         const std::optional<Value>& value, const std::string& place) {
  if (name.empty()) return later_section(section);  // its keys are refused, one by one
  const LaterKey* later = later_key(section, name);
  if (later == nullptr) return false;
  if (!later->fallback || value != later->fallback)
    faults.push_back(fmt::format(
        "{}: {}", place,
        not_there_yet(section + "." + name, value.value_or(Value("")), later->instead)));
  return true;
}

void Parse::read_top(const TomlEntry& entry, const std::string& place, int depth) {
  const auto* word = entry.value ? std::get_if<std::string>(&*entry.value) : nullptr;
  if (entry.key == "base" || entry.key == "name") {
    if (!word) return faults.push_back(fmt::format("{}: {} must be a string", place, entry.key));
    if (entry.key == "name") {
      job.name = *word;
      return;
    }

    // The base is read into this job, which keeps its own name.
    constexpr int kDeepest = 8;  // built-ins may have bases of their own, never in a circle
    const BuiltinFile* base = find_builtin(*word);
    if (!base) {
      return faults.push_back(fmt::format("{}: base = {} is not a built-in job; {}", place,
                                          value_text(*word), unknown_builtin(*word)));
    }
    TUTTI_CHECK(depth < kDeepest, "the built-in job {} is its own base", *word);
    const std::string name = job.name;
    read_file(base->text, fmt::format("built-in {}", base->name), true, depth + 1);
    job.name = name;
    return;
  }

  // Anything else here is a slip: the name of a section, or a mistyped key.
  for (const auto& section : sections()) {
    if (section.name != entry.key) continue;
    return faults.push_back(fmt::format("{}: {} is a section: write [{}] and its keys below", place,
                                        entry.key, entry.key));
  }
  const std::string near = nearest(entry.key, {"base", "name"});
  faults.push_back(fmt::format("{}: unknown key {}{}", place, entry.key,
                               did_you_mean(near.empty() ? nearest_key("", entry.key) : near)));
}

void Parse::read_setting(const Setting& setting) {
  const std::string place = fmt::format("--set {}={}", setting.key, setting.value);
  const size_t dot = setting.key.find('.');
  const std::string name = dot == std::string::npos ? setting.key : setting.key.substr(dot + 1);
  const std::string section =
      section_of(dot == std::string::npos ? "" : setting.key.substr(0, dot), name, place);
  const auto entry = read_toml_value(setting.value);
  if (refuse_later(section, name, entry ? entry->value : std::nullopt, place)) return;

  const Key* key = find_key(section, name);
  if (!key) {
    std::string near = nearest_key(section, name);
    // A slip in the section: the same key of the section that was meant.
    if (const Key* meant = find_key(nearest_section(section), name)) near = meant->full_name();
    return faults.push_back(
        fmt::format("{}: unknown key {}{}", place, setting.key, did_you_mean(near)));
  }
  if (!entry) return faults.push_back(fmt::format("{}: the value is not TOML", place));
  set(*key, *entry, place, {Origin::Kind::kSetting});
}

/// A name for the job, which its checkpoints store as JSON; a file's may have any bytes.
std::string stem(const std::string& source) {
  return as_utf8(std::filesystem::path(source).stem().string());
}

Job parse(std::string_view text, const std::string& name, const std::string& source, bool builtin,
          const std::vector<Setting>& settings) {
  Parse parse;
  parse.job.name = name;
  for (const auto& key : keys()) {
    key.set(parse.job, key.fallback);
    parse.job.origin[key.full_name()] = {};
  }
  parse.read_file(text, source, builtin, 0);
  for (const auto& setting : settings) parse.read_setting(setting);
  if (!parse.faults.empty()) throw ConfigError(std::move(parse.faults));
  return std::move(parse.job);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> builtin_jobs() {
  std::vector<std::pair<std::string, std::string>> jobs;
  for (const auto& file : builtin_files()) {
    const std::string_view line = file.text.substr(0, file.text.find('\n'));
    const size_t start = std::min(line.size(), line.find_first_not_of("# "));
    jobs.emplace_back(file.name, line.substr(start));
  }
  return jobs;
}

Job load_job(const std::string& name, const std::vector<Setting>& settings) {
  if (const BuiltinFile* file = find_builtin(name)) {
    return parse(file->text, name, "built-in " + name, true, settings);
  }
  if (name.empty())
    throw ConfigError({fmt::format("the job's name is empty; {}", unknown_builtin(name))});
  const PathKind kind = kind_at(name);
  if (kind == PathKind::kNothing) {
    throw ConfigError(
        {fmt::format("{} is neither a built-in job nor a file; {}", name, unknown_builtin(name))});
  }
  if (kind == PathKind::kFolder) throw ConfigError({name + " is a folder, not a job file"});
  // Also because a pipe could be read only once, and a job is read by the planner and then by the
  // run.
  if (kind == PathKind::kOther)
    throw ConfigError({name + " is a pipe or a device; a job is a regular file"});
  return parse(read_file(name), stem(name), name, false, settings);
}

Job parse_job(const std::string& text, const std::string& source,
              const std::vector<Setting>& settings) {
  return parse(text, stem(source), source, false, settings);
}

}  // namespace tutti
