// What an instruction costs: the seconds of its work, what resource it needs, and the bytes that it
// brings to its rank. Pure functions of a calibration (plan/search/calibration.h), the model's
// shape and the plan's options; the simulator (plan/search/simulate.h) runs programs on them.
//
// Ranks with equal roles have equal work: a slice counts as the unit divided by the shards,
// whatever the borders of parameter chunks make of it. So ranks of one role cost the same, and one
// of them can stand for all.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/ir/program.h"
#include "plan/ir/shape.h"
#include "plan/make/plan_mesh.h"
#include "plan/search/calibration.h"

namespace tutti {

/// What ranks that share a host's cores slow each other down in: arithmetic, or memory traffic.
enum class Resource : uint8_t { kMatmul, kMemory };
inline constexpr int kResources = 2;

/// What a link is for. kHosts: the second level of the data axis's sums, if they have two.
enum class Axis : uint8_t { kData, kTensor, kPipeline, kHosts };
inline constexpr int kAxes = 4;

struct Work {
  double seconds = 0;  ///< with the cores to itself
  Resource resource = Resource::kMemory;
  Axis axis = Axis::kData;  ///< of what it receives
  double received = 0;      ///< bytes
  double link = 0;          ///< of these, bytes from each peer
};

/// The seam of the simulator: tests bring their own.
struct CostModel {
  std::function<Work(const Program&, const Instruction&)> work;
  /// How fast work goes when `active` queues of a host are at work; 1: as fast as Work says. Empty:
  /// every rank has a processor of its own, and moving bytes slows nobody down.
  std::function<double(Resource resource, int active)> pace;
  std::vector<int> hosts;  ///< by rank; empty: all on one
};

/// Seconds of a segment on one micro-batch: forward, and the two parts of backward.
struct SegmentSeconds {
  double forward = 0, input = 0, weight = 0;
};

struct CostOptions {
  Calibration calibration;
  std::string transport = "shm";  ///< inside a host; between hosts it is "network"
  std::vector<int> hosts;         ///< by rank; empty: all on one
  bool own_processors = false;    ///< GPUs: nothing is shared
  /// [block][segment]; empty: by FLOPs and bytes.
  std::vector<std::vector<SegmentSeconds>> measured;
};

/// The number of hosts, if ranks (by rank: its host) are grouped into them in order, as
/// layout.hosts does; else 1, for then sums have one level.
int hosts_in_order(const std::vector<int>& hosts);

/// As measured, or estimated from the FLOPs and from the bytes that the segment reads and writes.
SegmentSeconds segment_seconds(const ModelShape& model, int block, int segment,
                               const CostOptions& options);

/// The cost model of a layout. It keeps copies of what it needs and may outlive its arguments.
CostModel mesh_cost(const ModelShape& model, const MeshOptions& options, const CostOptions& cost);

/// Bytes of a parameter, its gradient and its optimizer state.
struct SlotSizes {
  double parameter = 4, gradient = 4, optimizer = 8;
};
/// Bytes that a rank of a ZeRO stage keeps of `parameters` sliced over `ranks`: the formula of
/// the ZeRO paper.
double state_bytes(double parameters, int ranks, int zero, const SlotSizes& sizes);

}  // namespace tutti
