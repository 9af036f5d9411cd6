// Who feeds whom: the borders of a model resolved by name into indices, once, for everything that
// runs segments.
#pragma once

#include <string>
#include <vector>

#include "model/core/segment.h"

namespace tutti {

/// Where an input comes from: output `index` of the segment before it in its column, or tensor
/// `index` of the data.
struct Source {
  bool data = false;
  int index = -1;  ///< -1: nobody offers it
};

struct SegmentWiring {
  int block = 0, segment = 0;
  int before = -1, next = -1;  ///< its neighbours in its column: places in wire's list; -1: none
  std::vector<Border> inputs, outputs;
  std::vector<Source> sources;  ///< one per input
  /// one per input: backward makes its gradient (floating, and from the segment before)
  std::vector<bool> wanted;
  /// One per input: the type of its gradient. Its own, but float32 behind a gather: there the
  /// columns' are summed.
  std::vector<at::ScalarType> grad_types;
  /// one per output: the input of the next segment that reads it; -1: none
  std::vector<int> readers;
  /// One per output: the type in which it is read, which its gradient has; its own where nobody
  /// reads it.
  std::vector<at::ScalarType> read_types;
  std::vector<int> same_as;  ///< one per output: the input whose memory it is; -1: it has its own
};

/// All segments of the model in forward order: block by block. A column's are a chain.
std::vector<SegmentWiring> wire(const Model& model);

/// Whose parameter a block's parameter is.
struct Owner {
  int block = -1;      ///< -1: shared_with names nothing that an earlier block owns
  int parameter = -1;  ///< index in Block::parameters of the owner
  /// index among the parameters that the owner owns (in BlockShape::parameters)
  int own_index = -1;
  /// index in ParameterShape::extra_gradients of this user; -1: the owner itself
  int extra = -1;
};

/// [block][parameter].
std::vector<std::vector<Owner>> owners(const Model& model);

/// Every fault that would keep the model from running; empty: none.
std::vector<std::string> model_faults(const Model& model);

/// Throws Error naming the blocks that draw from torch's process-wide generator: ranks that are
/// threads would share it.
void check_thread_ranks(const Model& model);

int64_t elements(const Border& border);
int64_t border_bytes(const Border& border);
bool floating(const Border& border);
std::string to_string(const Border& border);  ///< "logits float [4, 10]"

}  // namespace tutti
