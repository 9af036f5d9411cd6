// The tensors of a model by name: what each segment reads and writes, for one micro-batch, as
// symbols. An output that is an input's memory has that input's symbol.
//
//   tensor    an output of a segment of a layer, over all columns
//   written   as its column's segment wrote it; whole, part: as the next segment reads it after an
//             exchange
//   gradient  of what was written (a column's, or the whole one for partial sums), or as the
//             reader's backward made it
#pragma once

#include <cstdint>
#include <vector>

#include "plan/ir/shape.h"

namespace tutti {

struct Symbol {
  enum class Kind : uint8_t {
    kNothing,
    kData,
    kWritten,
    kWhole,
    kPart,
    kGradient,
    kGradientWhole,
    kGradientRead,
    /// What a forward leaves of an input that it consumes; its backward makes the gradient of it.
    kConsumed,
    kSaved,
    kDeferred
  };
  Kind kind = Kind::kNothing;
  int tensor = -1, column = -1, lane = -1, micro = -1;
  bool operator==(const Symbol&) const = default;
  explicit operator bool() const { return kind != Kind::kNothing; }
};

struct SegmentSymbols {
  std::vector<Symbol> in, out, grad_in, grad_out;  ///< a gradient that nobody makes is nothing
  /// By input: the output that passes its memory on; -1: there is none.
  std::vector<int> passed;
  /// By output: whether its reader may give its memory to its gradient.
  std::vector<bool> consumed;
  Symbol saved, deferred;
};

class Symbols {
 public:
  explicit Symbols(const ModelShape& model);
  const SegmentSymbols& of(int block, int segment) const { return all_[block][segment]; }
  /// The bytes that a symbol's tensor takes in a buffer.
  int64_t bytes(const Symbol& symbol) const;
  /// What column 0 brings to an exchange of that output of a block's segment, or of its gradient.
  Symbol brought(const BlockShape& block, int segment, int output, bool gradient) const {
    return {gradient ? Symbol::Kind::kGradientRead : Symbol::Kind::kWritten,
            first_[block.layer][segment] + output, 0};
  }
  /// What an exchange makes of the symbol of one column: nothing if no such exchange is due.
  Symbol exchanged(const Symbol& symbol, Exchange exchange) const;

 private:
  struct Tensor {
    OutputShape shape;
    int64_t grad_bytes = 0;  ///< as the reader makes it
    bool wanted = false;     ///< its reader makes a gradient
    bool consumed = false;   ///< ... in its memory, if it is asked to
  };
  void add_forward(const ModelShape& model, int layer, int segment);
  void add_gradients(const ModelShape& model, int layer, int segment);
  Symbol read(const SegmentSymbols& writer, int tensor, int output, int column) const;

  std::vector<std::vector<SegmentSymbols>> all_;  // [block][segment]
  std::vector<Tensor> tensors_;
  std::vector<std::vector<int>> first_;  // [layer][segment]: the number of its output 0
  std::vector<int64_t> data_bytes_, saved_bytes_, deferred_bytes_;
  int columns_ = 1;
};

}  // namespace tutti
