// Every rank reports the first place that it found. All ranks get all reports and pick the same
// one, so the message is the same everywhere.
#include "engine/nonfinite.h"

#include <fmt/format.h>

#include <tuple>

namespace tutti {

// If a model is cut, several ranks see the same micro-batch: forward goes in the order of the
// blocks, and backward in the opposite one.
bool computed_before(const NonFinitePlace& a, const NonFinitePlace& b) {
  const auto order = [](const NonFinitePlace& place) {
    return std::tuple(place.lane, place.micro, place.gradient,
                      place.gradient != 0 ? -place.block : place.block);
  };
  return order(a) < order(b);
}

std::string describe_nonfinite(const std::vector<NonFinitePlace>& places, int64_t step,
                               const ModelShape& shape) {
  const NonFinitePlace* first = nullptr;
  for (const NonFinitePlace& place : places)
    if (place.lane >= 0 && (first == nullptr || computed_before(place, *first))) first = &place;
  if (first == nullptr)
    // Every lane alone is finite, so their sum overflowed.
    return fmt::format(
        "step {}: the sum of the gradients over all lanes is not finite; lower train.lr or set "
        "train.clip",
        step);
  const std::string& block = shape.blocks[first->block].name;
  const std::string where =
      fmt::format("step {}, lane {}, micro-batch {}", step, first->lane, first->micro);
  if (first->gradient != 0)
    return fmt::format("{}: the gradient of block {} is not finite", where, block);
  return fmt::format("{}: the loss is not finite; the first block with a non-finite output is {}",
                     where, block);
}

}  // namespace tutti
