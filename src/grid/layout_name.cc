// The keys' own rows say how they are named, so a new key needs nothing here.
#include "grid/layout_name.h"

#include <fmt/format.h>

#include "config/schema.h"
#include "grid/mesh.h"

namespace tutti {

namespace {

/// The words of all keys that are not off and mean something to this layout, in the order of their
/// rows. `form` is the form of a key's words; without `whole`, keys are left out that a table has
/// columns for.
std::string words_of(const LayoutConfig& layout, std::string Key::*form, bool whole) {
  Job job;
  job.layout = layout;
  std::string text;
  for (const Key& key : keys()) {
    if ((key.*form).empty() || (key.own_column && !whole)) continue;
    const Value value = key.get(job);
    const bool plain = value == key.off || value == key.fallback;
    const bool said = !plain || key.always_named;
    if (said && key.idle_reason(job).empty())
      text += fmt::format(fmt::runtime(key.*form), plain_text(value));
  }
  return text;
}

}  // namespace

std::string layout_name(const LayoutConfig& layout) {
  const Mesh mesh = mesh_of(layout);
  return fmt::format("data {} x tensor {} x pipeline {}", mesh.data, mesh.tensor, mesh.pipeline) +
         words_of(layout, &Key::long_name, true);
}

std::string layout_suffix(const LayoutConfig& layout) {
  const Mesh mesh = mesh_of(layout);
  std::string text;
  if (mesh.tensor * mesh.pipeline > 1)
    text =
        fmt::format(", data {} x tensor {} x pipeline {}", mesh.data, mesh.tensor, mesh.pipeline);
  return text + words_of(layout, &Key::long_name, false);
}

std::string layout_word(const LayoutConfig& layout) {
  const Mesh mesh = mesh_of(layout);
  return fmt::format("{}x{}x{}", mesh.data, mesh.tensor, mesh.pipeline) +
         words_of(layout, &Key::short_name, false);
}

}  // namespace tutti
