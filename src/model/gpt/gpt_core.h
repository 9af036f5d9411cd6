// The core of a branch: what the GPT's attention and MLP compute between a norm and the residual
// stream. It is written once for the whole model (gpt_branch.cc) and for a column of it
// (gpt_column_branch.cc). Each is two linear layers with a middle:
//   [rows, width] -> first -> [rows, columns] -> middle -> [rows, inner] -> second -> [rows, width]
//   attention: first is qkv, the middle mixes values head by head, second is proj
//   mlp:       first is fc1, the middle is the activation, second is fc2
// A column has its share of the heads or hidden units, and so of `columns` and `inner`. A core's
// forward ends where `second` begins: the segment around it runs that layer, either adding the
// residual stream or writing partial sums.
#pragma once

#include <initializer_list>
#include <memory>

#include "model/core/deferred.h"
#include "model/gpt/gpt_linear.h"
#include "model/gpt/gpt_segments.h"

namespace tutti {

/// Sizes of a core, and its parameters' places in the block.
struct GptCoreShape {
  GptDropoutSite site;  ///< the mask after it; it also tells attention from the mlp
  GptPlace norm, first, second;
  int64_t rows, width, columns, inner;
  // What else the middle needs: elements of the gradient of what second reads, floats that forward
  // saves, floats of scratch, and operations of its own.
  int64_t inner_gradient, statistics, scratch;
  double middle_flops;

  bool attention() const { return site == GptDropoutSite::kAttention; }
  const char* name() const { return attention() ? "attention" : "mlp"; }
  double flops() const;  ///< forward, per micro-batch
};

/// A core without memory of its own: a segment carves the memory per micro-batch and passes it to
/// every call. The table of kernels must outlive it.
template <class A>
class GptCore {
 public:
  /// `fused` are the kernels that the linear layers may use where a device has them. They round
  /// less often than the ones they replace, so using them is part of a model's bits.
  GptCore(const GptCoreShape& shape, const KernelsFor<A>& kernels, const FusedFor<A>& fused)
      : shape(shape), kernels_(kernels), fused_(fused) {}
  virtual ~GptCore() = default;

  struct Memory {
    // Kept from forward to backward.
    A* first;           // first's output, as the middle's forward leaves it
    A* inner;           // what second reads
    float* statistics;  // what the middle keeps
    // Scratch of one call of the segment.
    float* scratch;  // for whichever kernel runs
    A *dinner, *dfirst;
  };
  Memory memory(Carver& saved, Carver& work) const;

  /// What the input part of a backward leaves for the weight part.
  struct Between {
    SideGradients sides;
    A *dsecond, *dfirst;  // gradients of what the layers put out
    int64_t bytes;
  };
  Between between(std::initializer_list<SideGradients::Side> sides, Carver memory) const;

  /// Runs first and the middle: from the norm's output to m.inner.
  virtual void forward(const Context& context, const Memory& m, const A* normed) const = 0;
  /// Goes from the gradient of second's output to that of first's output and of first's bias (dbias
  /// may be null). If `weight_too`, it makes the gradient of second's weight as well; else a call
  /// of weight_part must follow.
  virtual void backward(const Context& context, const Memory& m, const A* dsecond, A* dfirst,
                        float* dbias, bool weight_too) const = 0;
  /// Makes the gradients of both weights.
  void weight_part(const Context& context, const Memory& m, const A* normed, const A* dsecond,
                   const A* dfirst) const;

  /// The two linear layers, for the segment that is running.
  GptLinear<A> first(const Context& context, const Memory& m) const {
    return {context,    kernels_,      fused_,      shape.first,
            shape.rows, shape.columns, shape.width, m.scratch};
  }
  GptLinear<A> second(const Context& context, const Memory& m) const {
    return {context,    kernels_,    fused_,      shape.second,
            shape.rows, shape.width, shape.inner, m.scratch};
  }

  const GptCoreShape shape;

 protected:
  const KernelsFor<A>& kernels_;

 private:
  const FusedFor<A> fused_;
};

template <class A>
using GptCorePtr = std::unique_ptr<GptCore<A>>;

/// The core of one of `parts` equal parts of the heads, or of the hidden units. `shape` is the
/// whole model's.
template <class A>
GptCorePtr<A> gpt_attention_core(const GptShape& shape, int64_t parts, const KernelsFor<A>& kernels,
                                 const FusedFor<A>& fused, const RotaryTable& rotary);
template <class A>
GptCorePtr<A> gpt_mlp_core(const GptShape& shape, int64_t parts, const KernelsFor<A>& kernels,
                           const FusedFor<A>& fused);

}  // namespace tutti
