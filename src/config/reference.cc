// docs/job.md, from the schema and the built-in jobs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/job.h"
#include "config/job_parts.h"
#include "config/schema.h"

namespace tutti {

namespace {

constexpr const char* kIntroduction = R"(# The job file

A job is a TOML file. `./tutti train my.toml` runs it, `./tutti explain my.toml` prints all its
values and where each came from. A key that is not in these tables is refused, with every other
fault of the file. A file may start from a built-in job and change what it names:

```toml
base = "gpt-kjv"

[train]
steps = 1000
```

`--set section.key=value` changes one key for one run; the value is TOML, and a bare word is a
string. At the top level a file may say `base` (the built-in job it starts from) and `name` (else
the file's own name is the job's).

What is in `[model]`, `[loss]`, `[data]`, `[augment]`, `[train]` and `[numerics]` is the job: it
decides the result. What is in `[layout]` is how the job is run: the result does not depend on it.

This page is made by `./tutti docs` from the keys in `src/config/keys.cc` and the parts in
`src/config/job_parts.cc`.
)";

std::string code(const std::string& text) { return "`" + text + "`"; }

std::string short_type(const Key& key) {
  if (key.automatic) return "integer or `auto`";
  switch (key.type()) {
    case ValueType::kInteger:
      return "integer";
    case ValueType::kNumber:
      return "number";
    case ValueType::kBoolean:
      return "boolean";
    case ValueType::kString:
      return "string";
    case ValueType::kIntegers:
      return "integers";
    case ValueType::kNumbers:
      return "numbers";
    case ValueType::kStrings:
      return "strings";
  }
  return {};
}

std::string values_of(const Key& key) {
  if (key.allowed.empty()) return key.limits.text();
  std::vector<std::string> words;
  for (const auto& word : key.allowed) words.push_back(code(word));
  std::string text = fmt::format("{}", fmt::join(words, ", "));
  return key.automatic ? text + ", " + key.limits.text() : text;
}

/// What the values of a key that names a part mean.
template <class Part>
std::string parts_text(const char* key) {
  std::string text = fmt::format("\n`{}`:\n\n| name | what it is |\n|---|---|\n", key);
  for (const Part& part : parts<Part>())
    text += fmt::format("| `{}` | {} |\n", part.name, part.help);
  return text;
}

std::string all_parts_text() {
  return "\n## Parts\n" + parts_text<ModelPart>("model.kind") + parts_text<LossPart>("loss.kind") +
         parts_text<DataPart>("data.kind") + parts_text<OptimizerPart>("train.optimizer") +
         parts_text<SchedulePart>("train.schedule") + parts_text<MetricPart>("train.watch") +
         parts_text<PipelinePart>("layout.schedule") +
         parts_text<TransportPart>("layout.transport");
}

}  // namespace

std::string job_reference() {
  std::string text = kIntroduction;
  text += "\n## Built-in jobs\n\n| name | what it is |\n|---|---|\n";
  for (const auto& [name, description] : builtin_jobs())
    text += fmt::format("| `{}` | {} |\n", name, description);
  for (const auto& section : sections()) {
    text += fmt::format("\n## [{}]: {}\n\n", section.name, section.help);
    text += "| key | type | default | values | meaning |\n|---|---|---|---|---|\n";
    for (const auto& key : keys()) {
      if (key.section != section.name) continue;
      text += fmt::format("| `{}` | {} | {} | {} | {} |\n", key.name, short_type(key),
                          code(value_text(key.fallback)), values_of(key), key.help);
    }
  }
  return text + all_parts_text();
}

}  // namespace tutti
