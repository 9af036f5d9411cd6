// Generator and checker share this one account of reads and writes: the generator makes the events
// that it asks for, and the checker proves that they are enough.
#include "plan/ir/touched.h"

namespace tutti {

namespace {

void add(std::vector<int>& list, int buffer) {
  if (buffer != -1 && !contains(list, buffer)) list.push_back(buffer);
}
void add(std::vector<int>& list, const std::vector<int>& buffers) {
  for (int b : buffers) add(list, b);
}

}  // namespace

Touched touched_by(const Instruction& i) {
  Touched a;

  // Operands and additions say themselves how they are accessed. What is borrowed is no buffer of
  // this program: Acquire and Release keep its owner from writing there too early.
  for (const Operand& operand : i.operands) {
    if (operand.rank >= 0) continue;
    if (operand.access != Access::kWrite) add(a.reads, operand.buffer);
    if (operand.access != Access::kRead) add(a.writes, operand.buffer);
  }
  for (const Add& sum : i.adds) {
    add(a.reads, sum.from);
    add(a.reads, sum.into);
    add(a.writes, sum.into);
  }

  // What a flow has in common: inputs and parameters are read, gradients and temporaries are
  // written.
  const Flow& f = i.flow;
  add(a.reads, f.in);
  for (const UnitBuffer& p : f.parameters) add(a.reads, p.buffer);
  for (const UnitBuffer& g : f.gradients) add(a.writes, g.buffer);
  add(a.writes, f.work);  // nobody reads it afterwards, but no two may use it at once

  // The rest depends on the op. A scatter adds up its inputs in place. Forward leaves what backward
  // needs. The last case is Backward, and all ops whose flow is empty.
  if (i.op == Op::kExchange) {
    add(a.writes, f.out);
    if (i.exchange == Exchange::kScatter) add(a.writes, f.in);
  } else if (i.op == Op::kForward) {
    for (int out : f.out) {
      if (!contains(f.in, out)) add(a.writes, out);  // otherwise it is passed on
    }
    add(a.writes, f.saved);
    add(a.writes, f.grad_in);  // in the place of inputs that are consumed
  } else {
    add(a.reads, f.out);
    add(a.reads, f.saved);
    add(a.reads, f.grad_out);
    add(a.writes, f.grad_in);  // one that is passed on may be added to
    // What the input part leaves, the weight part reads. A whole backward defers nothing.
    switch (i.part) {
      case Part::kInput:
        add(a.writes, f.deferred);
        break;
      case Part::kWeight:
        add(a.reads, f.deferred);
        break;
      case Part::kBoth:
        break;
    }
  }
  return a;
}

}  // namespace tutti
