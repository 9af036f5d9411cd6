// The form of a mesh's programs: everything they name is there, has the size that it needs and lies where it may.
#pragma once

#include <string>
#include <vector>

#include "plan/make/mesh.h"

namespace tutti {

std::vector<std::string> check_mesh_structure(const Plan& plan, const ModelShape& model, const MeshOptions& options);

/// Buffers that an instruction reads and writes on its own rank, each once; a buffer may be in both.
struct Touched {
  std::vector<int> reads, writes;
};
Touched touched_by(const Instruction& instruction);
/// The same of all instructions of a plan: [rank][queue][index].
using TouchedByAll = std::vector<std::vector<std::vector<Touched>>>;
TouchedByAll touched_by_all(const Plan& plan);

}  // namespace tutti
