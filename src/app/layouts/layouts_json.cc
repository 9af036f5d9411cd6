// A layout is written as the keys that the search tries, so a program can pass them back with
// --set.
#include "app/layouts/layouts_json.h"

#include <nlohmann/json.hpp>

#include "config/schema.h"

namespace tutti {

std::string layouts_json(const Job& job, const SearchResult& result) {
  nlohmann::ordered_json layouts = nlohmann::json::array();
  for (const Candidate& c : result.best) {
    Job with = job;
    set_layout(with, c.options);
    nlohmann::ordered_json layout{{"ranks", with.layout.ranks}};
    for (const Key& key : keys()) {
      if (!key.searched) continue;
      std::visit([&](const auto& value) { layout[key.name] = value; }, key.get(with));
    }
    layouts.push_back({{"name", layout_name(c.options)},
                       {"layout", layout},
                       {"seconds", c.seconds},
                       {"bubble", c.bubble},
                       {"exposed", c.exposed},
                       {"bytes", c.memory.total()},
                       {"link_bytes",
                        {{"data", c.link[static_cast<size_t>(Axis::kData)]},
                         {"tensor", c.link[static_cast<size_t>(Axis::kTensor)]},
                         {"pipeline", c.link[static_cast<size_t>(Axis::kPipeline)]},
                         {"hosts", c.link[static_cast<size_t>(Axis::kHosts)]}}}});
  }

  // What was rejected has no numbers, only its reason.
  nlohmann::ordered_json rejected = nlohmann::json::array();
  for (const Rejection& r : result.rejected)
    rejected.push_back({{"reason", r.reason}, {"layouts", r.layouts}});
  return nlohmann::ordered_json{{"layouts", layouts}, {"rejected", rejected}}.dump(1) + "\n";
}

}  // namespace tutti
