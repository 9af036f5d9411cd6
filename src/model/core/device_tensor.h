// Tensors on the device where a segment computes: views of memory that somebody else owns, and
// constants that are copied there once.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <vector>

namespace tutti {

/// A view of memory on `device`. The memory must outlive the view.
inline at::Tensor view_on(at::Device device, const void* memory, at::IntArrayRef dims,
                          at::ScalarType type) {
  return at::for_blob(const_cast<void*>(memory), dims)
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

/// Values made on the host. The first use on another device copies them there and waits for it;
/// later uses take the copy, so a pass may be captured from the second one on. For one thread, like
/// the segment that holds it.
class DeviceConstant {
 public:
  DeviceConstant() = default;
  explicit DeviceConstant(at::Tensor host) : host_(std::move(host)) {}
  const at::Tensor& on(at::Device device) const {
    if (device == host_.device()) return host_;
    for (const at::Tensor& copy : copies_)
      if (copy.device() == device) return copy;
    return copies_.emplace_back(host_.to(device));
  }

 private:
  at::Tensor host_;
  mutable std::vector<at::Tensor> copies_;
};

}  // namespace tutti
