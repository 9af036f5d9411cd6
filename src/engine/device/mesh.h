// A step of a mesh's program on a device: ZeRO, tensor and pipeline ranks and their hybrids (plan/make/mesh.h), their
// queues as streams, what travels by device groups.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/device/ddp.h"
#include "engine/host/mesh.h"

namespace tutti {

/// Collective: joins the groups, and copies of shared parameters on other ranks than their owners' are made here.
/// Units and memory of the parts lie on the device.
std::unique_ptr<Engine> make_device_mesh_engine(const MeshParts& parts, const RankDevice& device);

/// Why steps of the model on this layout cannot be captured; empty: they can.
std::vector<std::string> capture_faults(const Model& model, const LayoutConfig& layout);

/// What a rank of a mesh will take of its device.
DeviceForecast device_forecast(const Job& job, const Model& model, const Plan& plan, const Plan& forward_plan,
                               const ModelShape& shape, const MeshOptions& options, int rank);

}  // namespace tutti
