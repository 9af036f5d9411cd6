// Notices draws from torch's process-wide generator.
#pragma once

#include <ATen/record_function.h>

namespace tutti {

/// While it lives, remembers whether this thread ran an operator that draws and torch's generator
/// of the device moved. Both are asked for: another thread may move the generator, and dropout of
/// nothing does not. Not to be nested.
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
