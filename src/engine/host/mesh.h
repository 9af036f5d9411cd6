// A step of a mesh's program on the host's cores: ZeRO, tensor and pipeline ranks and their hybrids (plan/make/mesh.h).
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/host/travel.h"
#include "engine/parts.h"

namespace tutti {

/// Collective: copies of shared parameters on other ranks than their owners' are made here.
std::unique_ptr<Engine> make_mesh_engine(const MeshParts& parts);

}  // namespace tutti
