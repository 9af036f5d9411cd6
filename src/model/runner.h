// Runs the segments of a model on one rank: it owns the tensors between them and knows where parameters and gradients
// lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/memory.h"
#include "model/segment.h"
#include "model/wiring.h"
#include "tensor/allocator.h"

namespace tutti {

struct Loss {
  double sum = 0, count = 0;
};

/// Where a runner's memory lies and in which precision its matmuls read weights.
struct RunnerOptions {
  at::Device device = at::kCPU;
  MemorySource* memory = nullptr;  ///< of borders, saved and work; null: the host's
  std::vector<void*> low;          ///< by unit: the copies of its parameters; empty: precision is float32
  at::ScalarType precision = at::kFloat;
  const double* loss_scale = nullptr;  ///< Context's
  /// Of ModelRunner: gradients take the memory of inputs that segments consume. Then these borders hold no values after
  /// a forward in training.
  bool consume = false;
  /// Of PlanRunner: where the copies, in `precision`, of a parameter buffer's values lie, one behind the other as they
  /// do there. Empty: precision is float32.
  std::function<void*(int buffer)> low_memory = {};
};

/// What has no floating point is. Waits for a device.
bool all_finite(const at::Tensor& values);

/// For models of one column whose segments exchange nothing and pass nothing on; all others have a plan
/// (model/plan_runner.h). One micro-batch is in flight at a time: forward through all segments in order, then (in
/// training) backward through all in reverse order, before the next begins. Not thread-safe.
class ModelRunner {
 public:
  /// `units[b]` are the values of block b's unit (BlockShape::unit_size floats, 64-byte aligned); they, `model` and
  /// `accounts` must outlive the runner. Borders, saved and work memory are taken here, for good.
  ModelRunner(const Model& model, const ModelShape& shape, std::span<float* const> units, Accounts& accounts,
              RunnerOptions options = {});

  /// Forward of one segment. `data` as Model::data says, the same tensors until the micro-batch's backward ends; where
  /// they lie in the host's memory Model::check sees them first.
  void forward(int block, int segment, const Pass& pass, Tensors data);
  /// Backward of the segment whose forward ran with the same pass. `gradients[b]` is where block b's gradient goes
  /// (BlockShape::gradient_size floats); only this block's and those of the owners of parameters that it shares are
  /// touched, the others may be null. What is written is whole: nothing is added.
  void backward(int block, int segment, const Pass& pass, Tensors data, std::span<float* const> gradients);

  /// All segments forward, all back.
  void forward_all(const Pass& pass, Tensors data);
  void backward_all(const Pass& pass, Tensors data, std::span<float* const> gradients);

  /// Of the last forward of the last segment. On a device this waits for it; loss_border() does not.
  Loss loss() const;
  const at::Tensor& loss_border() const { return slots_.back().outputs.back(); }
  /// The last output of that name on the way to the loss ("logits"); valid until the next forward. Throws Error if
  /// there is none.
  const at::Tensor& border(const std::string& name) const;
  /// The first block of the last forward with an output that is not finite; -1: none.
  int first_nonfinite_block() const;

 private:
  // A parameter of a block: where its values and its gradient lie.
  struct Place {
    at::Tensor values;
    int unit = 0;                 // whose gradient buffer
    int64_t gradient_offset = 0;  // floats
    std::vector<int64_t> dims;
    std::vector<std::pair<float*, at::Tensor>> views;  // gradient views made so far, by address
  };
  struct Slot {  // a segment's tensors
    const Segment* segment = nullptr;
    SegmentWiring wiring;
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> grad_inputs;  // undefined where not wanted
    std::span<std::byte> saved, work;
    std::shared_ptr<void> kept;
  };

  Slot& slot(int block, int segment) { return slots_[first_slot_[block] + segment]; }
  at::Tensor view(void* memory, const std::vector<int64_t>& dims, at::ScalarType type) const;
  Context context(int block, Slot& slot, const Pass& pass, Tensors gradients);
  std::vector<at::Tensor> inputs(int index, Tensors data) const;
  const at::Tensor& gradient(Place& place, float* base);

  const Model& model_;
  RunnerOptions options_;
  Ledger ledger_;                                    // what ATen allocates in a segment
  std::vector<int> first_slot_;                      // of each block
  std::vector<Slot> slots_;                          // all segments in forward order
  std::vector<std::vector<Place>> places_;           // [block][parameter]
  std::vector<std::vector<at::Tensor>> parameters_;  // [block]: the values of places_
  std::vector<std::vector<at::Tensor>> low_;         // [block]: their copies; empty in float32
  std::vector<at::Tensor> gradients_;                // of the block in backward
  std::unique_ptr<Arena> borders_, saved_, work_;
};

}  // namespace tutti
