#include "grid/layout_name.h"

#include <fmt/format.h>

#include "config/schema.h"
#include "grid/mesh.h"

namespace tutti {

namespace {

/// Of the keys that are not off and say something to this layout, in the order of their rows.
/// `form` is the key's text for it.
std::string words_of(const LayoutConfig& layout, std::string Key::*form, bool fold) {
  Job job;
  job.layout = layout;
  if (!fold || layout.fold == FoldKind::kLocal) job.layout.fold = FoldKind::kAuto;
  std::string text;
  for (const Key& key : keys()) {
    if ((key.*form).empty()) continue;
    const Value value = key.get(job);
    const bool said = value != key.off() || key.always_named;
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
