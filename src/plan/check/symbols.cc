// Worked out from the model's shape alone, never from the plan: this is what the plan is judged by.
#include "plan/check/symbols.h"

#include <utility>

namespace tutti {

namespace {

using Kind = Symbol::Kind;

/// The segment before one in its column: (layer, segment); layer -1: there is none.
std::pair<int, int> before(const ModelShape& model, int layer, int segment) {
  if (segment > 0) return {layer, segment - 1};
  if (layer == 0) return {-1, -1};
  return {layer - 1,
          static_cast<int>(model.blocks[model.block_at(layer - 1, 0)].segments.size()) - 1};
}

}  // namespace

Symbols::Symbols(const ModelShape& model)
    : all_(model.blocks.size()), data_bytes_(model.data_bytes), columns_(model.columns) {
  // Forward, in the order of the model: a segment's inputs are outputs of the one before it.
  for (int layer = 0; layer < model.layers(); ++layer) {
    first_.emplace_back();
    const auto& segments = model.blocks[model.block_at(layer, 0)].segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      first_.back().push_back(static_cast<int>(tensors_.size()));
      for (const OutputShape& out : segments[s].outputs) tensors_.push_back({out, 0, false, false});

      // What the reader says of a tensor (whether it wants a gradient, whether it consumes) is
      // noted with the tensor, since its writer needs it.
      const auto [l, p] = before(model, layer, s);
      for (const InputShape& in : segments[s].inputs) {
        if (in.data || !in.wanted || l < 0) continue;
        Tensor& tensor = tensors_[first_[l][p] + in.index];
        tensor.wanted = true;
        tensor.consumed = in.consumed;
        tensor.grad_bytes = in.grad_bytes;
      }

      add_forward(model, layer, s);
      saved_bytes_.push_back(segments[s].saved_bytes);
      deferred_bytes_.push_back(segments[s].deferred_bytes);
    }
  }

  // Gradients, when all readers are known. They too go by the segment before, whose grad_out
  // is there already.
  for (int layer = 0; layer < model.layers(); ++layer) {
    const auto& segments = model.blocks[model.block_at(layer, 0)].segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) add_gradients(model, layer, s);
  }
}

/// How a segment reads an output of the one before it: after its exchange, if it has one.
Symbol Symbols::read(const SegmentSymbols& writer, int tensor, int output, int column) const {
  switch (tensors_[tensor].shape.exchange) {
    case Exchange::kGather:
      return {Kind::kWhole, tensor};
    case Exchange::kScatter:
      return {Kind::kPart, tensor, column};
    default:
      return writer.out[output];
  }
}

void Symbols::add_forward(const ModelShape& model, int layer, int segment) {
  const auto [l, p] = before(model, layer, segment);
  for (int column = 0; column < model.columns; ++column) {
    const int block = model.block_at(layer, column);
    const SegmentShape& shape = model.blocks[block].segments[segment];

    // Saved and deferred values are numbered by segment; columns tell them apart.
    SegmentSymbols own;
    const int number = static_cast<int>(saved_bytes_.size());
    own.saved = {Kind::kSaved, number, column};
    own.deferred = {Kind::kDeferred, number, column};
    own.passed.assign(shape.inputs.size(), -1);

    for (const InputShape& in : shape.inputs) {
      if (in.data || l < 0) {
        own.in.push_back({Kind::kData, in.index});
      } else {
        own.in.push_back(
            read(all_[model.block_at(l, column)][p], first_[l][p] + in.index, in.index, column));
      }
    }

    // An output that is an input's memory keeps its symbol, however often it is passed on.
    for (size_t o = 0; o < shape.outputs.size(); ++o) {
      const int from = shape.outputs[o].same_as;
      if (from >= 0) own.passed[from] = static_cast<int>(o);
      own.out.push_back(
          from >= 0 ? own.in[from]
                    : Symbol{Kind::kWritten, first_[layer][segment] + static_cast<int>(o), column});
    }
    all_[block].push_back(std::move(own));
  }
}

void Symbols::add_gradients(const ModelShape& model, int layer, int segment) {
  const auto [l, p] = before(model, layer, segment);
  for (int column = 0; column < model.columns; ++column) {
    const int block = model.block_at(layer, column);
    const SegmentShape& shape = model.blocks[block].segments[segment];
    SegmentSymbols& own = all_[block][segment];

    // The gradient of an input is the gradient of the output that it reads; with an exchange in
    // between it still has to be exchanged. There is none if nobody wants it, or if memory that is
    // passed on gets no gradient back.
    for (size_t i = 0; i < shape.inputs.size(); ++i) {
      Symbol made;
      const bool lost =
          own.passed[i] >= 0 && !tensors_[first_[layer][segment] + own.passed[i]].wanted;
      if (shape.inputs[i].wanted && l >= 0 && !lost) {
        const int index = shape.inputs[i].index, tensor = first_[l][p] + index;
        const bool plain = tensors_[tensor].shape.exchange == Exchange::kNone;
        made = plain ? all_[model.block_at(l, column)][p].grad_out[index]
                     : Symbol{Kind::kGradientRead, tensor, column};
      }
      own.grad_in.push_back(made);
    }

    // The gradient of an output, as the segment's backward reads it.
    for (size_t o = 0; o < shape.outputs.size(); ++o) {
      const int tensor = first_[layer][segment] + static_cast<int>(o);
      Symbol read;  // also of memory that is passed on: the segment may add to it
      if (tensors_[tensor].wanted) {
        const bool sum = shape.outputs[o].exchange == Exchange::kScatter;
        read = sum ? Symbol{Kind::kGradientWhole, tensor} : Symbol{Kind::kGradient, tensor, column};
      }
      own.grad_out.push_back(read);
      own.consumed.push_back(tensors_[tensor].consumed);
    }
  }
}

int64_t Symbols::bytes(const Symbol& symbol) const {
  switch (symbol.kind) {
    case Kind::kNothing:
      return 0;

    // What is computed is as large as the model declares it. An exchange changes the size, so what
    // is read has a size apart from what was written.
    case Kind::kData:
      return data_bytes_[symbol.tensor];
    case Kind::kWritten:
      return tensors_[symbol.tensor].shape.bytes;
    case Kind::kWhole:
    case Kind::kPart:
      return tensors_[symbol.tensor].shape.read_bytes;

    // A gradient is as large as its reader makes it. Beyond an exchange it is as large as what the
    // segment wrote or, for partial sums, as all columns' parts together.
    case Kind::kGradient:
      return tensors_[symbol.tensor].shape.exchange == Exchange::kNone
                 ? tensors_[symbol.tensor].grad_bytes
                 : tensors_[symbol.tensor].shape.bytes;
    case Kind::kGradientWhole:
      return tensors_[symbol.tensor].grad_bytes * columns_;
    case Kind::kGradientRead:
    case Kind::kConsumed:
      return tensors_[symbol.tensor].grad_bytes;

    // These belong to a segment, whose number their symbols have in place of a tensor's.
    case Kind::kSaved:
      return saved_bytes_[symbol.tensor];
    case Kind::kDeferred:
      return deferred_bytes_[symbol.tensor];
  }
  return 0;
}

Symbol Symbols::exchanged(const Symbol& symbol, Exchange exchange) const {
  Symbol made = symbol;
  if (symbol.kind != Kind::kWritten && symbol.kind != Kind::kGradientRead) return {};

  // What was written goes through the exchange that is declared, a gradient through the other one.
  const Exchange declared = tensors_[symbol.tensor].shape.exchange;
  if (symbol.kind == Kind::kWritten) {
    if (declared != exchange) return {};
    made.kind = exchange == Exchange::kGather ? Kind::kWhole : Kind::kPart;
  } else {
    if (declared == Exchange::kNone || declared == exchange) return {};
    made.kind = exchange == Exchange::kGather ? Kind::kGradientWhole : Kind::kGradient;
  }
  if (exchange == Exchange::kGather) made.column = -1;
  return made;
}

}  // namespace tutti
