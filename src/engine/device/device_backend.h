// The engine's backend on a device: queues are streams, what travels between ranks goes by device
// groups, and a steady step is captured once and launched again (engine/device/device_steps.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/device/rank_device.h"

namespace tutti {

/// Collective, since it joins the groups. Units and memory of the parts are on the device.
std::unique_ptr<Backend> make_device_backend(const EngineParts& parts, const Station& station,
                                             const RankDevice& device);

/// Why steps of the model on this layout cannot be captured; empty if they can.
std::vector<std::string> capture_faults(const Model& model, const LayoutConfig& layout);

}  // namespace tutti
