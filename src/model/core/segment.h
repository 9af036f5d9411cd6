// The seam between models and everything else. A model is a list of blocks; a block is a
// list of segments and one unit of parameters (FSDP's flat parameter); a segment has a
// forward and a backward on tensors that somebody else allocated. Nothing outside src/model
// knows what a model computes.
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

/// How a parameter's first values are drawn. Draws are keyed by (seed, parameter name, element), so
/// the values are the same on every layout.
struct Init {
  using Kind = InitKind;
  Kind kind = Kind::kZeros;
  /// For kNormal and kTruncatedNormal the standard deviation (before the tails beyond two of them
  /// are cut off), for kConstant the value, for Glorot and He the gain (He's own square root of two
  /// comes on top). Fans are those of dims [out, in, ...]; an orthogonal matrix is
  /// [dims[0], the rest].
  double scale = 1;
  std::shared_ptr<const std::vector<float>> values = nullptr;
};

struct Parameter {
  std::string name;  ///< within the block: "attention.qkv.weight"
  std::vector<int64_t> dims;
  Init init;
  /// If not empty, this block uses the parameter "block/name" of an earlier block (weight tying).
  /// It gets a view of the owner's values and a gradient of its own, which the reduction adds to
  /// the owner's.
  std::string shared_with;
  /// A buffer (BatchNorm's running statistics) is a parameter that the optimizer does not touch.
  /// Forward reads it, and what backward writes as its gradient is the value that this
  /// micro-batch proposes in its place. Proposals travel with the gradients over the same tree.
  /// At the commit a kMeanBuffer becomes the mean of all micro-batches' proposals, and a
  /// kSumBuffer grows by their sum.
  Role role = Role::kTrained;
};

/// A tensor that crosses from one segment to the next, or from the data into a segment: an
/// activation, per micro-batch.
struct Border {
  std::string name;
  std::vector<int64_t> dims;
  at::ScalarType type = at::kFloat;
  /// For outputs: what happens between the columns of a model before the next segment reads it.
  /// With S columns that segment declares an input of the same name with the elements after the
  /// exchange: gathered, S times as many of the same type; scattered, one S-th of them in any
  /// floating type. A gathered input's gradient is a float32 partial sum of the whole; a scattered
  /// output's gradient has the type in which it was read.
  Exchange exchange = Exchange::kNone;
  /// For outputs: the name of the input whose memory this is (a residual stream that passes by).
  /// The segment does not touch it, and the next segment must read it. The two gradients share one
  /// memory as well: when backward is called, grad_in holds the gradient that came back, and a
  /// segment that also computes with the input adds its own gradient to it.
  std::string same_as = "";
};

/// Which micro-batch this is. Randomness may be keyed by these fields and by nothing else.
struct Pass {
  uint64_t seed = 0;
  int64_t step = 0;
  int lane = 0, micro = 0;
  /// position of its first sample in the job's order; sample i is at first_sample + i
  int64_t first_sample = 0;
  int block = 0;
  bool training = true;
  /// On a device these are the step's keys, in the device's memory. With them `step` does not
  /// count, and first_sample is relative to the step's first sample, because a captured step is
  /// launched again with other keys.
  const StepKeys* keys = nullptr;
};

/// What a segment may use while it runs. Parameters and gradients are those of its block, in
/// declaration order. Gradients are written whole (beta = 0), never added to.
struct Context {
  Pass pass;
  std::span<const at::Tensor> parameters;
  std::span<const at::Tensor> gradients;  ///< empty in forward
  /// saved_bytes of memory, 256-byte aligned; backward finds there what forward left
  std::span<std::byte> saved;
  std::span<std::byte> work;    ///< work_bytes of scratch, contents undefined
  std::shared_ptr<void>& kept;  ///< for autograd segments: the graph from forward to backward
  /// The gradient at which backward starts for the loss's (sum, count): two doubles in the device's
  /// memory, (scale, 0). Null means (1, 0).
  const double* loss_scale = nullptr;
  /// the parameters in the precision of the matmuls; empty if that is float32
  std::span<const at::Tensor> low = {};
  /// deferred_bytes of memory; the weight part finds there what the input part left
  std::span<std::byte> deferred = {};
  /// The gradients of inputs that the segment consumes take these inputs' memory. A forward in
  /// training may leave them there already.
  bool consume = false;
  /// A parameter in the precision in which a matmul reads it.
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
  /// Bytes that it wants in Context::saved and Context::work for one micro-batch. Both are 0 for
  /// autograd segments: their bytes are ATen's own allocations, which the dry run measures.
  virtual int64_t saved_bytes() const { return 0; }
  virtual int64_t work_bytes() const { return 0; }
  virtual double flops() const { return 0; }  ///< forward, per micro-batch
  /// Whether it draws from torch's process-wide generator, which is refused where ranks
  /// are threads (check_thread_ranks).
  virtual bool draws() const { return false; }
  /// Whether forward and backward may be captured once and launched again on a device. They may if
  /// they neither wait for it nor decide by values that it computed, and if all randomness is
  /// keyed by Pass::keys.
  virtual bool captures() const { return true; }
  /// Writes every output whole. The `in` tensors stay alive and unchanged until this micro-batch's
  /// backward of this segment.
  virtual void forward(Context& context, Tensors in, Tensors out) const = 0;
  /// Writes the gradient of every floating input whole into `grad_in` (where a tensor there is
  /// undefined, it is not wanted) and the parameters' gradients into context.gradients. `in` and
  /// `out` are forward's tensors. grad_in[i] may be the same memory as grad_out[j] if the two
  /// borders have the same shape. It always is where output j is passed on from input i; there the
  /// segment adds to what it finds.
  virtual void backward(Context& context, Tensors in, Tensors out, Tensors grad_out,
                        Tensors grad_in) const = 0;

  /// Whether backward can run in two parts, as zero-bubble schedules want it. The parts do the same
  /// operations as the whole, so the bits are the same.
  virtual bool splits() const { return false; }
  virtual int64_t deferred_bytes() const { return 0; }  ///< of Context::deferred
  /// The input part. Writes grad_in and none of context.gradients.
  virtual void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                              Tensors grad_in) const;
  /// The weight part. Writes context.gradients from what backward_input left in `deferred`. By then
  /// grad_out and the parameters' values are gone.
  virtual void backward_weight(Context& context, Tensors in, Tensors out) const;
  /// Whether neither this segment nor the one that put the input out needs its values once its
  /// gradient is made. A runner may then have the gradient take the input's memory
  /// (Context::consume).
  virtual bool consumes(size_t /*input*/) const { return false; }
  /// Whether this is attention, which layout.recompute = "selective" computes again.
  virtual bool attention() const { return false; }
  /// Whether torch's kernels make its results: on a CPU their bits follow the kind of processor.
  virtual bool by_torch() const { return false; }
};

struct Block {
  /// unique in the model: "embed", "blocks.0", "head"; the block of a further column is
  /// "blocks.0.slice1"
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
  /// output [B, n], targets are the first data tensor; a row is padding where the data's
  /// "targets" is -1
  kReconstruct,
};

/// A model and the rules by which its segments meet.
///
/// - The first block's inputs are the data's tensors (tokens; features). A segment's inputs are
///   matched by name: with outputs of the segment before it, else with the data's tensors.
/// - The last segment's outputs end with "loss": float64 [2], the sum of the losses over valid
///   targets and their count. Backward through it gets no grad_out and starts at d(sum) = 1.
///   The targets reach the loss as an input of the last segment that is named as the data
///   names it ("targets").
///
/// A model may be defined in S columns (tensor parallelism). Its blocks are listed layer by layer,
/// and within a layer column by column, all with the same segments and borders. A column is a model
/// of its own, fed by its own blocks of the layer before; columns meet where an output declares an
/// exchange. A parameter that all columns use (a norm's weight) is column 0's, and the others share
/// it. Every column ends with the same loss; column 0's counts.
struct Model {
  std::vector<Block> blocks;
  int columns = 1;
  /// the data's tensors of one micro-batch: "tokens" [B, T] int64, "targets" [B, T] int64
  std::vector<Border> data;
  int64_t tokens_per_sample = 1;
  Task task = Task::kLoss;
  std::string output = "logits";  ///< the border that evaluation reads
  bool output_sliced = false;     ///< with columns: each has a part of the output's last dim
  /// Looks at a micro-batch's tensors in the host's memory and throws on faults such as ids out of
  /// range. It runs before a device gets them, since kernels there cannot throw. Empty if nothing
  /// could be wrong.
  std::function<void(std::span<const at::Tensor>)> check = {};
};

/// Whether any of its segments does.
bool by_torch(const Model& model);

/// Makes the sizes and offsets that the plan knows the model by. Parameters get names
/// "<block>.<parameter>"; a block's shape lists only those it owns. Throws Error listing every
/// fault of the model: names used twice, a share of something that is not an earlier block's own,
/// borders that do not meet, an end that is not "loss".
ModelShape describe(const Model& model);

/// Fills `values` (a whole parameter, contiguous) by its init; `name` is the full name.
void initialise(const Parameter& parameter, const std::string& name, uint64_t seed,
                std::span<float> values);
/// Fills elements [first, first + values.size()) of a parameter. The values are the same however
/// the parameter is cut into ranges.
void initialise_range(const Parameter& parameter, const std::string& name, uint64_t seed,
                      int64_t first, std::span<float> values);

}  // namespace tutti
