// The data of micro-batches in flight, for programs that have it. A Load fills the buffers of a
// data slot, and the segments of its micro-batch read them; the slot is used again once its
// micro-batch is done.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "model/core/segment.h"
#include "plan/ir/program.h"

namespace tutti {

class DataSlots {
 public:
  /// `memory` says where a buffer of the program is, on the device `on`.
  DataSlots(const Model& model, const Program& program,
            const std::function<std::byte*(int buffer)>& memory, at::Device on);

  /// The tensors of Model::data in the slot that the Load fills; empty where the slot's memory is
  /// lent.
  const std::vector<at::Tensor>& filled_by(const Instruction& load) const;
  /// Until the next Load, the slot that this Load fills is this memory.
  void lend(const Instruction& load, const std::vector<at::Tensor>& tensors);
  /// The tensors in the slot that the instruction's segment reads; none where it reads no data.
  std::span<const at::Tensor> read_by(const Instruction& instruction) const;
  /// The tensors in the slot that is filled first.
  const std::vector<at::Tensor>& first() const { return slots_.at(0); }

 private:
  size_t slot_of(const Instruction& load) const;
  const Program& program_;
  std::vector<std::vector<at::Tensor>> slots_;  // in the order of the first Loads into them
  std::unordered_map<int, size_t> slot_of_;     // by data buffer
};

}  // namespace tutti
