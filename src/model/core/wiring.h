// Who feeds whom: the borders of a model, matched by name and resolved into indices. This is done
// once, for everything that runs or describes segments.
#pragma once

#include <string>
#include <vector>

#include "model/core/segment.h"

namespace tutti {

/// Where an input comes from: output `index` of the segment before it in its column, or tensor
/// `index` of the data.
struct Source {
  bool data = false;
  int index = -1;  ///< -1 if nobody offers it
};

/// One segment with its place in its column and what its borders connect to.
struct SegmentWiring {
  int block = 0, segment = 0;
  int before = -1, next = -1;  ///< neighbours in its column: places in wire()'s list, or -1
  std::vector<Border> inputs, outputs;
  std::vector<Source> sources;  ///< one per input
  /// one per input: whether backward makes its gradient (it is floating and comes from a segment)
  std::vector<bool> wanted;
  /// One per input: the type of its gradient. That is its own type, but float32 after a gather,
  /// where the columns' gradients are summed.
  std::vector<at::ScalarType> grad_types;
  /// one per output: the input of the next segment that reads it; -1 if none does
  std::vector<int> readers;
  /// One per output: the type in which it is read, which its gradient has as well. It is the
  /// output's own type if nobody reads it.
  std::vector<at::ScalarType> read_types;
  std::vector<int> same_as;  ///< one per output: the input whose memory it is; -1 if its own
};

/// All segments of the model in forward order, block by block. Those of one column form a chain.
std::vector<SegmentWiring> wire(const Model& model);

/// Who owns a parameter that a block uses: the block itself, or an earlier one that shares it.
struct Owner {
  int block = -1;      ///< -1 if shared_with names nothing that an earlier block owns
  int parameter = -1;  ///< index in Block::parameters of the owner
  /// index among the parameters that the owner itself owns (BlockShape::parameters)
  int own_index = -1;
  /// index of this user in ParameterShape::extra_gradients; -1 if it is the owner itself
  int extra = -1;
};

/// The owner of every block's every parameter, as [block][parameter].
std::vector<std::vector<Owner>> owners(const Model& model);

/// Every fault that would keep the model from running; empty if there is none.
std::vector<std::string> model_faults(const Model& model);

/// Throws Error naming the blocks that draw from torch's process-wide generator: ranks that are
/// threads would share it.
void check_thread_ranks(const Model& model);

/// A border's number of elements, its bytes, whether it can have a gradient, and its text.
int64_t elements(const Border& border);
int64_t border_bytes(const Border& border);
bool floating(const Border& border);
std::string to_string(const Border& border);  ///< "logits float [4, 10]"

}  // namespace tutti
