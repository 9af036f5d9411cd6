// Asks torch twice: its record of operators says whether this thread ran one that draws, the
// generator's state whether something was drawn.
#include "model/adapt/draw_watch.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/equal.h>

#include "tensor/allocator.h"

namespace tutti {

namespace {

// torch calls an observer as a plain function, so it can leave what it saw only with its thread.
thread_local bool saw_drawing_operator = false;

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& call) {
  const auto name = call.operator_name();
  if (!name) return nullptr;
  const auto op = c10::Dispatcher::singleton().findOp(*name);
  if (op && op->hasTag(at::Tag::nondeterministic_seeded)) saw_drawing_operator = true;
  return nullptr;
}

at::Tensor generator_state(at::Device device) {
  AllocationScope uncounted;  // watching must not show in what is measured
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

DrawWatch::DrawWatch(at::Device device)
    : device_(device),
      before_(generator_state(device)),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(observe).scopes({at::RecordScope::FUNCTION}))) {
  saw_drawing_operator = false;
}

DrawWatch::~DrawWatch() { at::removeCallback(handle_); }

bool DrawWatch::drew() const {
  return saw_drawing_operator && !at::equal(before_, generator_state(device_));
}

}  // namespace tutti
