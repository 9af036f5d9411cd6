#include "grid/layout_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "grid/mesh.h"

namespace tutti {

namespace {

/// One property, as both say it.
struct Said {
  std::string name, word;
};

/// What is not the default, in the order in which it is said. The fold is left out.
std::vector<Said> said_of(const LayoutConfig& l) {
  const Mesh mesh = mesh_of(l);
  const auto& [data, tensor, pipeline, shards] = mesh;
  std::vector<Said> all = {
      {fmt::format("data {} x tensor {} x pipeline {}", data, tensor, pipeline),
       fmt::format("{}x{}x{}", data, tensor, pipeline)}};
  if (pipeline > 1) all.push_back({l.schedule, l.schedule});
  if (pipeline > 1 && l.in_flight > 0) {
    all.back().name += fmt::format(", {} in flight", l.in_flight);
    all.back().word += fmt::format("/{}", l.in_flight);
  }
  if (l.zero > 0) all.push_back({fmt::format("zero {}", l.zero), fmt::format("zero{}", l.zero)});
  if (l.zero > 0 && shards != data) {
    all.back().name += fmt::format(" over {}", shards);
    all.back().word += fmt::format("/{}", shards);
  }
  if (l.depth != 1)
    all.push_back({fmt::format("depth {}", l.depth), fmt::format("depth{}", l.depth)});
  if (l.recompute != "none") all.push_back({"recompute " + l.recompute, l.recompute});
  if (l.offload != "none")
    all.push_back({"offload " + l.offload, l.offload == "all" ? "offload-all" : "offload"});
  return all;
}

}  // namespace

std::string layout_name(const LayoutConfig& layout) {
  std::vector<std::string> names;
  for (const Said& said : said_of(layout)) names.push_back(said.name);
  if (layout.fold != "local") names.push_back("fold " + layout.fold);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string layout_suffix(const LayoutConfig& layout) {
  std::vector<Said> all = said_of(layout);
  if (layout.tensor * layout.pipeline == 1) all.erase(all.begin());
  std::string text;
  for (const Said& said : all) text += ", " + said.name;
  return text;
}

std::string layout_word(const LayoutConfig& layout) {
  std::vector<std::string> words;
  for (const Said& said : said_of(layout)) words.push_back(said.word);
  return fmt::format("{}", fmt::join(words, ","));
}

}  // namespace tutti
