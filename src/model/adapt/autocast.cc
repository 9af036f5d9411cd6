// ATen's autocast settings, set and restored. They are in a file of their own because the header
// that they need includes all of ATen.
#include "model/adapt/autocast.h"

#include <ATen/autocast_mode.h>

namespace tutti {

namespace autocast = at::autocast;

AutocastScope::AutocastScope(at::ScalarType type) : active_(type != at::kFloat) {
  if (!active_) return;
  was_enabled_ = autocast::is_autocast_enabled(at::kCUDA);
  was_type_ = autocast::get_autocast_dtype(at::kCUDA);
  kept_casts_ = autocast::is_autocast_cache_enabled();

  // The cache would keep casts of parameters by address, across passes in which they change.
  autocast::set_autocast_cache_enabled(false);
  autocast::set_autocast_dtype(at::kCUDA, type);
  autocast::set_autocast_enabled(at::kCUDA, true);
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  autocast::set_autocast_enabled(at::kCUDA, was_enabled_);
  autocast::set_autocast_dtype(at::kCUDA, was_type_);
  autocast::set_autocast_cache_enabled(kept_casts_);
}

}  // namespace tutti
