#include "app/layouts/layouts_json.h"

#include <nlohmann/json.hpp>

namespace tutti {

std::string layouts_json(const Job& job, const SearchResult& result) {
  nlohmann::ordered_json layouts = nlohmann::json::array();
  for (const Candidate& c : result.best) {
    Job with = job;
    set_layout(with, c.options);
    const LayoutConfig& l = with.layout;
    layouts.push_back({{"name", layout_name(c.options)},
                       {"layout",
                        {{"ranks", l.ranks},
                         {"tensor", l.tensor},
                         {"pipeline", l.pipeline},
                         {"zero", l.zero},
                         {"shards", l.shards},
                         {"schedule", l.schedule},
                         {"chunks", l.chunks},
                         {"in_flight", l.in_flight},
                         {"recompute", l.recompute},
                         {"fold", l.fold}}},
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
  nlohmann::ordered_json rejected = nlohmann::json::array();
  for (const Rejection& r : result.rejected)
    rejected.push_back({{"reason", r.reason}, {"layouts", r.layouts}});
  return nlohmann::ordered_json{{"layouts", layouts}, {"rejected", rejected}}.dump(1) + "\n";
}

}  // namespace tutti
