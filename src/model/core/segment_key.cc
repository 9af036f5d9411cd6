// The key is a text of everything that a segment's cost could depend on: type, borders, what
// backward makes, parameters and declared bytes.
#include "model/core/segment_key.h"

#include <fmt/ranges.h>

#include <typeinfo>

#include "model/adapt/adaptor.h"

namespace tutti {

std::string segment_key(const Block& block, const SegmentWiring& wiring) {
  const Segment& segment = *block.segments[static_cast<size_t>(wiring.segment)];
  std::string key = typeid(segment).name();
  if (typeid(segment) == typeid(AutogradSegment)) key += fmt::format(" {}", fmt::ptr(&segment));
  for (const Border& b : wiring.inputs) key += "; in " + to_string(b);
  for (const Border& b : wiring.outputs) key += "; out " + to_string(b);
  for (bool wanted : wiring.wanted) key += wanted ? " w" : " -";
  for (at::ScalarType type : wiring.grad_types) key += fmt::format(" {}", c10::toString(type));
  for (at::ScalarType type : wiring.read_types) key += fmt::format(" {}", c10::toString(type));
  for (const Parameter& p : block.parameters)
    key += fmt::format("; {} [{}]", p.name, fmt::join(p.dims, ", "));
  return key +
         fmt::format("; {} {} {}", segment.name(), segment.saved_bytes(), segment.work_bytes());
}

}  // namespace tutti
