// Why there are two staging buffers before the input: a captured step reads at fixed addresses, so
// micro-batches must be copied there between two steps, from device memory, which is fast. While
// step s reads the input, the micro-batches of step s + 1 arrive in a staging buffer; that one and
// its pinned memory are those of step s - 1, which has ended.
#include "engine/device/device_feed.h"

#include <ATen/ops/from_blob.h>

#include <cstring>

#include "base/error.h"
#include "model/core/data_borders.h"
#include "model/core/wiring.h"

namespace tutti {

namespace {

size_t rounded(int64_t bytes) { return static_cast<size_t>(align_up(bytes, 256)); }

size_t micro_batch_bytes(const Model& model) {
  size_t bytes = 0;
  for (const Border& border : model.data) bytes += rounded(border_bytes(border));
  return bytes;
}

}  // namespace

DeviceFeed::DeviceFeed(const Model& model, const std::vector<MicroBatch>& sequence, Loader& loader,
                       Device& device, at::Device at_device, Accounts& accounts)
    : model_(model),
      sequence_(sequence),
      loader_(loader),
      device_(device),
      bytes_(micro_batch_bytes(model)),
      count_(sequence.size()),
      arena_(BufferKind::kData,
             static_cast<size_t>(device_bytes(model, static_cast<int64_t>(count_))), accounts,
             &device),
      input_(arena_.take(bytes_ * count_)),
      stream_(device.make_stream()) {
  for (Staging& staging : staging_) {
    staging.memory = arena_.take(bytes_ * count_);
    staging.pinned = device.take_pinned(bytes_ * count_);
    staging.arrived = device.make_event(false);
  }

  // Tensors of a micro-batch are next to each other, each on a 256-byte border.
  size_t at = 0;
  for (const Border& border : model.data) {
    offsets_.push_back(at);
    at += rounded(border_bytes(border));
  }

  // What segments read are views of the input, made once.
  for (size_t k = 0; k < count_; ++k) {
    index_[{sequence_[k].lane, sequence_[k].micro}] = k;
    tensors_.emplace_back();
    for (size_t i = 0; i < model.data.size(); ++i)
      tensors_.back().push_back(
          at::for_blob(input_.data() + k * bytes_ + offsets_[i], model.data[i].dims)
              .options(at::TensorOptions().dtype(model.data[i].type).device(at_device))
              .target_device(at_device)
              .make_tensor());
  }
}

// The input, and two staging buffers.
int64_t DeviceFeed::device_bytes(const Model& model, int64_t micro_batches) {
  return 3 * static_cast<int64_t>(micro_batch_bytes(model)) * micro_batches;
}

DeviceFeed::~DeviceFeed() {
  for (Staging& staging : staging_) device_.give_back_pinned(staging.pinned);
}

const std::vector<at::Tensor>& DeviceFeed::tensors(int lane, int micro) const {
  return tensors_[index_.at({lane, micro})];
}

void DeviceFeed::bring(int64_t step) {
  Staging& staging = staging_[step % 2];
  if (staging.step == step) return;

  // An exception must not come out here: the step before may still be running, and this one may
  // never be asked for.
  staging.step = step;
  staging.failure = nullptr;
  try {
    for (size_t k = 0; k < count_; ++k) {
      const auto& tensors = loader_.next(step, sequence_[k].lane, sequence_[k].micro);
      if (model_.check) model_.check(tensors);
      std::byte* to = staging.pinned.data() + k * bytes_;
      for (size_t i = 0; i < tensors.size(); ++i)
        std::memcpy(to + offsets_[i], tensors[i].const_data_ptr(), tensors[i].nbytes());
    }
    staging.digest = loader_.digest();
    device_.copy(stream_, staging.memory.data(), staging.pinned.data(), staging.pinned.size());
    device_.record(staging.arrived, stream_);
  } catch (...) {
    staging.failure = std::current_exception();
  }
}

void DeviceFeed::fill_input(int64_t step, Stream stream) {
  bring(step);
  const Staging& staging = staging_[step % 2];
  if (input_step_ == step || staging.failure) return;

  // The copy is on the stream of the steps, so it comes after all that still reads the input. The
  // device waits for the staging buffer to be full.
  device_.wait(stream, staging.arrived);
  device_.copy(stream, input_.data(), staging.memory.data(), input_.size());
  input_step_ = step;
}

void DeviceFeed::use(int64_t step, Stream stream) {
  fill_input(step, stream);
  const Staging& staging = staging_[step % 2];
  if (staging.failure) std::rethrow_exception(staging.failure);
  digest_ = staging.digest;
}

}  // namespace tutti
