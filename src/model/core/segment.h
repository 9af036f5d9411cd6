// The seam between models and everything else: a model is blocks, a block is segments and one unit
// of parameters, a segment has a forward and a backward on tensors that somebody else allocated.
// Nothing outside this folder knows what a model computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/enums.h"
#include "plan/ir/shape.h"
#include "tensor/kernels.h"

namespace tutti {

/// How a parameter's first values are drawn: keyed by (seed, parameter name, element), so the same
/// on every layout.
struct Init {
  using Kind = InitKind;
  Kind kind = Kind::kZeros;
  /// Standard deviation of (truncated) normal, before it is cut at two of them; the constant's
  /// value; the gain of Glorot and He (He's own square root of two comes on top). Fans are those of
  /// dims [out, in, ...]; an orthogonal matrix is [dims[0], the rest].
  double scale = 1;
  std::shared_ptr<const std::vector<float>> values = nullptr;
};

struct Parameter {
  std::string name;  ///< within the block: "attention.qkv.weight"
  std::vector<int64_t> dims;
  Init init;
  /// Not empty: this block uses the parameter "block/name" of an earlier block. It gets a view of
  /// the owner's values and a gradient of its own, added to the owner's after both are reduced.
  std::string shared_with;
  /// A buffer (BatchNorm's running statistics) is a parameter that the optimizer does not touch:
  /// forward reads it, and what backward writes as its gradient is what this micro-batch proposes
  /// in its place. Proposals travel with the gradients over the same tree: kMeanBuffer becomes the
  /// mean of all micro-batches' proposals at the commit, kSumBuffer grows by the sum of what they
  /// wrote.
  Role role = Role::kTrained;
};

/// A tensor at a segment border, per micro-batch.
struct Border {
  std::string name;
  std::vector<int64_t> dims;
  at::ScalarType type = at::kFloat;
  /// Outputs: what happens between the columns of a tensor-sliced model before the next segment
  /// reads it. That one declares an input of the same name with the elements after the exchange:
  /// gathered S times as many of the same type, scattered a S-th of them, in any floating type. A
  /// gathered input's gradient is a float32 partial sum of the whole; a scattered output's gradient
  /// has the type in which it was read.
  Exchange exchange = Exchange::kNone;
  /// Outputs: the name of the input whose memory this is, passed on to the next segment, which must
  /// read it. The segment does not touch it. Their gradients are one memory, too: when backward is
  /// called grad_in holds what came back, and a segment that computes with the input besides adds
  /// its own gradient to it.
  std::string same_as = "";
};

/// Which micro-batch this is; all that randomness may be keyed by.
struct Pass {
  uint64_t seed = 0;
  int64_t step = 0;
  int lane = 0, micro = 0;
  /// position of its first sample in the job's order; sample i is first_sample + i
  int64_t first_sample = 0;
  int block = 0;
  bool training = true;
  /// On a device: the step's keys in its memory. Then `step` does not count, and first_sample is
  /// counted from the step's first one: a captured step is launched again with other keys.
  const StepKeys* keys = nullptr;
};

/// What a segment may use while it runs. Parameters and gradients are those of its block, in
/// declaration order. Gradients are to be written whole (beta = 0), never added to.
struct Context {
  Pass pass;
  std::span<const at::Tensor> parameters;
  std::span<const at::Tensor> gradients;  ///< empty in forward
  /// saved_bytes of memory, 256-byte aligned; what forward leaves, backward finds
  std::span<std::byte> saved;
  std::span<std::byte> work;    ///< work_bytes of scratch, contents undefined
  std::shared_ptr<void>& kept;  ///< for autograd segments: the graph from forward to backward
  /// The gradient that the loss's (sum, count) starts backward with: two doubles in the device's
  /// memory, (scale, 0). Null: (1, 0).
  const double* loss_scale = nullptr;
  /// the parameters in the precision of the matmuls; empty: it is float32
  std::span<const at::Tensor> low = {};
  /// deferred_bytes of memory: what the input part leaves, the weight part finds
  std::span<std::byte> deferred = {};
  /// The gradients of inputs that the segment consumes are to lie in these inputs' memory. A
  /// forward in training may leave them there already.
  bool consume = false;
  /// A parameter as a matmul reads it.
  const at::Tensor& weight(size_t place) const {
    return low.empty() ? parameters[place] : low[place];
  }
};

using Tensors = std::span<const at::Tensor>;

class Segment {
 public:
  virtual ~Segment() = default;
  virtual std::string name() const = 0;
  virtual std::vector<Border> inputs() const = 0;
  virtual std::vector<Border> outputs() const = 0;
  /// Bytes it wants in Context::saved and Context::work for one micro-batch; 0 for autograd
  /// segments (their bytes are ATen's own allocations, measured by the dry run).
  virtual int64_t saved_bytes() const { return 0; }
  virtual int64_t work_bytes() const { return 0; }
  virtual double flops() const { return 0; }  ///< forward, per micro-batch
  /// Draws from torch's process-wide generator: refused where ranks are threads
  /// (check_thread_ranks).
  virtual bool draws() const { return false; }
  /// Whether forward and backward may be captured once and launched again on a device: they neither
  /// wait for it nor decide by values that it computed, and all randomness is keyed by Pass::keys.
  virtual bool captures() const { return true; }
  /// Writes every output whole. `in` tensors stay alive and unchanged until this micro-batch's
  /// backward of this segment.
  virtual void forward(Context& context, Tensors in, Tensors out) const = 0;
  /// Writes every gradient of a floating input whole into `grad_in` (undefined tensors there are
  /// not wanted) and the parameters' gradients into context.gradients. `in` and `out` are forward's
  /// tensors. grad_in[i] may be the same memory as grad_out[j] where the two borders have the same
  /// shape, and is where output j is passed on from input i: then what is there is added to.
  virtual void backward(Context& context, Tensors in, Tensors out, Tensors grad_out,
                        Tensors grad_in) const = 0;

  /// Whether backward runs in two parts, as zero-bubble schedules want it: the same operations, so
  /// the same bits.
  virtual bool splits() const { return false; }
  virtual int64_t deferred_bytes() const { return 0; }  ///< of Context::deferred
  /// Writes grad_in; of context.gradients nothing.
  virtual void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                              Tensors grad_in) const;
  /// Writes context.gradients, from what backward_input left in `deferred`. grad_out is no longer
  /// there, nor are the parameters' values.
  virtual void backward_weight(Context& context, Tensors in, Tensors out) const;
  /// Whether an input is needed no more once its gradient is made, by this segment or by the one
  /// whose output it is: a runner may then have the gradient take its memory (Context::consume).
  virtual bool consumes(size_t /*input*/) const { return false; }
  /// Attention: what layout.recompute = "selective" computes again.
  virtual bool attention() const { return false; }
};

struct Block {
  /// unique in the model: "embed", "blocks.0", "head"; of a slice "blocks.0.slice1"
  std::string name;
  std::vector<Parameter> parameters;
  std::vector<std::unique_ptr<Segment>> segments;
};

/// What the model's output means, so that evaluation knows its metrics.
enum class Task {
  kLoss,     ///< nothing but the loss is known
  kTokens,   ///< output [.., vocab], targets int64 [..]: perplexity, accuracy
  kClasses,  ///< output [B, classes], targets int64 [B]
  kBinary,   ///< output [B, k] logits, targets float [B, k] of 0 and 1
  kValues,   ///< output [B, k], targets float [B, k]
  /// output [B, n], targets are the first data tensor; a row is padding where "targets" is -1
  kReconstruct,
};

/// The first block's inputs are the data's tensors (tokens; features). The last segment's outputs
/// end with "loss": float64 [2], the sum of the losses over valid targets and their count; backward
/// through it gets no grad_out and starts at d(sum) = 1. A targets tensor reaches the loss as an
/// input of the last segment named as the data names it ("targets"). Inputs of a segment are
/// matched by name: with outputs of the segment before it, else with the data's tensors.
///
/// A tensor-sliced model has S columns: blocks stand layer by layer, and in a layer column by
/// column, all with the same segments and borders. A column is a model of its own, fed by its own
/// blocks of the layer before; columns meet where an output declares an exchange. A parameter of
/// all columns (a norm's weight) is column 0's, and the others share it. Every column ends with the
/// same loss; column 0's counts.
struct Model {
  std::vector<Block> blocks;
  int columns = 1;
  /// what a micro-batch of data holds: "tokens" [B, T] int64, "targets" [B, T] int64
  std::vector<Border> data;
  int64_t tokens_per_sample = 1;
  Task task = Task::kLoss;
  std::string output = "logits";  ///< the border that evaluation reads
  bool output_sliced = false;     ///< with columns: each has its part of the output's last dim
  /// Looks at a micro-batch's tensors in the host's memory before a device gets them, which cannot
  /// throw: ids out of range. Empty: there is nothing that could be wrong.
  std::function<void(std::span<const at::Tensor>)> check = {};
};

/// Sizes and offsets for the plan. Parameters get names "<block>.<parameter>"; a block's shape
/// lists only those it owns. Throws Error listing every fault of the model: names used twice, a
/// share of something that is not an earlier block's own, borders that do not meet, an end that is
/// not "loss".
ModelShape describe(const Model& model);

/// Fills `values` (a parameter, contiguous) by its init; `name` is the full name.
void initialise(const Parameter& parameter, const std::string& name, uint64_t seed,
                std::span<float> values);
/// Fills elements [first, first + values.size()) of a parameter: the same values however a
/// parameter is cut.
void initialise_range(const Parameter& parameter, const std::string& name, uint64_t seed,
                      int64_t first, std::span<float> values);

}  // namespace tutti
