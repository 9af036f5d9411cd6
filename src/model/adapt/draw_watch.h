// Notices draws from torch's process-wide generator, so that a function that draws without saying
// so can be refused.
#pragma once

#include <ATen/record_function.h>

namespace tutti {

/// While it lives, remembers whether this thread ran an operator that draws and whether torch's
/// generator of the device moved. Both are needed: another thread may move the generator, and
/// dropout at rate 0 does not. Not to be nested.
class DrawWatch {
 public:
  explicit DrawWatch(at::Device device = at::kCPU);
  ~DrawWatch();
  DrawWatch(const DrawWatch&) = delete;
  DrawWatch& operator=(const DrawWatch&) = delete;
  bool drew() const;

 private:
  at::Device device_;
  at::Tensor before_;
  at::CallbackHandle handle_;
};

}  // namespace tutti
