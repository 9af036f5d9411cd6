// Every op says what it wants to find and what it leaves; the model's shape says what that is for
// each segment (plan/check/symbols.h). Symbols carry lane and micro-batch, so a buffer that still
// has another one's tensor is found.
#include "plan/check/flow.h"

#include <fmt/format.h>

#include "grid/mesh.h"

namespace tutti {

namespace {

/// A symbol of the model on the micro-batch of an instruction.
Symbol of(Symbol symbol, const Instruction& i) {
  if (symbol) symbol.lane = i.lane, symbol.micro = i.micro;
  return symbol;
}

/// What a forward leaves in the place of an input whose gradient this is.
Symbol consumed_for(Symbol gradient) {
  if (gradient) gradient.kind = Symbol::Kind::kConsumed;
  return gradient;
}

bool is_gradient(const Instruction& exchange) { return exchange.part == Part::kInput; }

}  // namespace

FlowValues::FlowValues(const Plan& plan, const ModelShape& model, PlaceFaults& faults)
    : plan_(plan), model_(model), symbols_(model), faults_(faults) {
  for (const Program& program : plan.programs) held_.emplace_back(program.buffers.size());
}

void FlowValues::need(Place place, int b, Symbol wanted, const char* what) {
  if (!wanted && b < 0) return;
  if (b < 0) return faults_.add(place, fmt::format("has no {}", what));
  if (!wanted)
    return faults_.add(
        place, fmt::format("is given '{}' as {}, which nobody makes", buffer(place, b).name, what));
  if (held_[place.rank][b] == wanted) return;
  const Symbol& there = held_[place.rank][b];
  faults_.add(place, fmt::format("'{}' is not {} of lane {} micro {}{}", buffer(place, b).name,
                                 what, wanted.lane, wanted.micro,
                                 there ? fmt::format(", but something of lane {} micro {}",
                                                     there.lane, there.micro)
                                       : ": nothing is in it"));
}

void FlowValues::put(Place place, int b, const Symbol& made, const char* what) {
  if (b < 0) {
    if (made) faults_.add(place, fmt::format("has nowhere to write {}", what));
    return;
  }
  if (const int64_t bytes = symbols_.bytes(made); buffer(place, b).bytes < bytes) {
    faults_.add(place, fmt::format("'{}' has {} bytes, {} needs {}", buffer(place, b).name,
                                   buffer(place, b).bytes, what, bytes));
  }
  held_[place.rank][b] = made;
}

void FlowValues::load(Place place) {
  const Instruction& i = at(plan_, place);
  const auto tensors = operands_of(i, OperandRole::kData);
  if (tensors.size() != model_.data_bytes.size())
    return faults_.add(place, "does not write all tensors of the data");

  // The loader lends one micro-batch at a time: with the next one the last is gone.
  for (size_t b = 0; b < held_[place.rank].size(); ++b)
    if (buffer(place, static_cast<int>(b)).lent) held_[place.rank][b] = {};
  for (size_t d = 0; d < tensors.size(); ++d)
    put(place, tensors[d]->buffer, of({Symbol::Kind::kData, static_cast<int>(d)}, i), "the data");
}

void FlowValues::forward(Place place) {
  const Instruction& i = at(plan_, place);
  const SegmentSymbols& s = symbols_.of(i.block, i.segment);
  const SegmentShape& shape = model_.blocks[i.block].segments[i.segment];
  for (size_t k = 0; k < s.in.size(); ++k) need(place, i.flow.in[k], of(s.in[k], i), "its input");
  if (i.flow.work >= 0) put(place, i.flow.work, {}, "");

  // An output is written, or it is an input's memory and stays as it is.
  for (size_t o = 0; o < s.out.size(); ++o) {
    const int from = shape.outputs[o].same_as;
    if (from < 0) {
      put(place, i.flow.out[o], of(s.out[o], i), "its output");
    } else if (i.flow.out[o] != i.flow.in[from]) {
      faults_.add(place, fmt::format("does not pass '{}' on", shape.outputs[o].name));
    }
  }

  // What is left for backward. An input that is consumed has something else in its memory now: its
  // gradient may be there already.
  put(place, i.flow.saved, shape.saved_bytes > 0 ? of(s.saved, i) : Symbol{}, "what it saves");
  for (size_t k = 0; k < i.flow.grad_in.size(); ++k)
    if (i.flow.grad_in[k] >= 0)
      put(place, i.flow.grad_in[k], of(consumed_for(s.grad_in[k]), i), "what it consumes");
}

void FlowValues::backward(Place place) {
  const Instruction& i = at(plan_, place);
  const SegmentSymbols& s = symbols_.of(i.block, i.segment);
  const SegmentShape& shape = model_.blocks[i.block].segments[i.segment];

  // Backward finds what forward read and wrote, except what was consumed or added up meanwhile.
  for (size_t k = 0; k < s.in.size(); ++k) {
    // An input that its forward consumed is gone.
    const bool consumed =
        k < i.flow.grad_in.size() && i.flow.grad_in[k] == i.flow.in[k] && s.passed[k] < 0;
    need(place, i.flow.in[k], of(consumed ? consumed_for(s.grad_in[k]) : s.in[k], i), "its input");
  }
  for (size_t o = 0; o < s.out.size(); ++o) {
    // Partial sums are scratch once they are added up: no backward may want them. An output that
    // the next segment consumed has become its gradient, and no backward may want it either.
    const bool consumed =
        s.consumed[o] && o < i.flow.grad_out.size() && i.flow.grad_out[o] == i.flow.out[o];
    if (shape.outputs[o].exchange == Exchange::kScatter) continue;
    need(place, i.flow.out[o], of(consumed ? s.grad_out[o] : s.out[o], i), "its output");
  }

  if (shape.saved_bytes > 0) need(place, i.flow.saved, of(s.saved, i), "what its forward saved");
  if (i.flow.work >= 0) put(place, i.flow.work, {}, "");

  // The weight part reads what the input part left, and no gradients of borders.
  const bool defers = i.part != Part::kBoth && shape.deferred_bytes > 0;
  if (i.part == Part::kWeight) {
    if (defers) need(place, i.flow.deferred, of(s.deferred, i), "what its input part left");
    return;
  }

  // The input part, or the whole: gradients of outputs come in, gradients of inputs go out. Memory
  // that was passed on is passed back.
  for (size_t o = 0; o < s.out.size(); ++o)
    need(place, i.flow.grad_out[o], of(s.grad_out[o], i), "the gradient of its output");
  if (defers) put(place, i.flow.deferred, of(s.deferred, i), "what it leaves for later");

  for (size_t k = 0; k < s.in.size(); ++k) {
    if (s.passed[k] >= 0 && i.flow.grad_in[k] != (s.grad_in[k] ? i.flow.grad_out[s.passed[k]] : -1))
      faults_.add(place, "does not pass a gradient on");
    if (!s.grad_in[k] && i.flow.grad_in[k] >= 0)
      faults_.add(place, "makes a gradient that nobody wants");
    put(place, i.flow.grad_in[k], of(s.grad_in[k], i), "the gradient of its input");
  }
}

/// All members must bring the tensor that is named, of the same micro-batch, with their
/// columns in order.
void FlowValues::exchange(const std::vector<Place>& places) {
  const Instruction& first = at(plan_, places[0]);
  const Symbol tensor =
      symbols_.brought(model_.blocks[first.block], first.segment, first.output, is_gradient(first));
  const int64_t arriving =
      arriving_parts(model_.columns, static_cast<int>(places.size())) * symbols_.bytes(tensor);

  // Columns are counted through all members: the tensor must come from each, in order. Those who
  // scatter need room for what arrives.
  int column = 0;
  std::vector<std::vector<Symbol>> made(places.size());
  bool sound = true;
  for (size_t p = 0; p < places.size(); ++p) {
    const Instruction& i = at(plan_, places[p]);
    if (i.output != first.output || is_gradient(i) != is_gradient(first))
      faults_.add(places[p],
                  fmt::format("is about another tensor than {}", name_of(plan_, places[0])));
    const int64_t room = i.flow.work < 0 ? 0 : buffer(places[p], i.flow.work).bytes;
    if (first.exchange == Exchange::kScatter && room * model_.columns < arriving)
      faults_.add(places[p], fmt::format("has {} bytes for sums that arrive, it needs {}", room,
                                         arriving / model_.columns));
    for (int b : i.flow.in) {
      const Symbol& there = held_[places[p].rank][b];
      Symbol wanted = tensor;
      wanted.column = column++;
      wanted.lane = i.lane, wanted.micro = i.micro;
      made[p].push_back(symbols_.exchanged(there, first.exchange));
      if (there == wanted && made[p].back()) continue;
      faults_.add(places[p], fmt::format("'{}' is not what column {} brings",
                                         buffer(places[p], b).name, column - 1));
      sound = false;
    }
  }

  // All columns have to be there.
  if (sound && column != model_.columns) {
    faults_.add(places[0], fmt::format("has {} columns of {}", column, model_.columns));
    sound = false;
  }

  // Results: a gather makes one tensor of all columns, a scatter a part for each of mine. A scatter
  // uses up what it adds.
  for (size_t p = 0; p < places.size(); ++p) {
    const Instruction& i = at(plan_, places[p]);
    if (i.exchange == Exchange::kScatter) {
      for (int b : i.flow.in) held_[places[p].rank][b] = {};
    }
    const size_t count = i.exchange == Exchange::kGather ? 1 : i.flow.in.size();
    if (i.flow.out.size() != count) {
      faults_.add(places[p], fmt::format("writes {} tensors, not {}", i.flow.out.size(), count));
      continue;
    }
    for (size_t k = 0; k < count; ++k)
      put(places[p], i.flow.out[k], sound ? made[p][k] : Symbol{}, "its result");
  }
}

/// A message moves the symbol itself, so what arrives is judged when it is read.
void FlowValues::transfer(Place send, Place receive) {
  const Instruction &from = at(plan_, send), &to = at(plan_, receive);
  if (from.bytes != to.bytes)
    faults_.add(receive, fmt::format("expects {} bytes, {} are sent", to.bytes, from.bytes));

  // A buffer may be larger than the message: it also holds other things at other times.
  const int source = buffer_of(from, OperandRole::kMessage),
            target = buffer_of(to, OperandRole::kMessage);
  if (buffer(send, source).bytes < from.bytes || buffer(receive, target).bytes < to.bytes)
    faults_.add(receive, fmt::format("{} bytes do not fit into their buffers", to.bytes));
  const Symbol& sent = held_[send.rank][source];
  if (!sent) faults_.add(send, fmt::format("'{}' is empty", buffer(send, source).name));
  if (sent && from.bytes != symbols_.bytes(sent))
    faults_.add(send,
                fmt::format("sends {} bytes of a tensor of {}", from.bytes, symbols_.bytes(sent)));
  held_[receive.rank][target] = sent;
}

}  // namespace tutti
