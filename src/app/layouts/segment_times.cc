// Runs each kind of segment on made-up tensors. Zeros are valid for every type of input, and their
// speed is that of any values.
#include "app/layouts/segment_times.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "base/wait.h"
#include "model/core/segment_key.h"
#include "model/core/wiring.h"

namespace tutti {

namespace {

constexpr int kTimes = 7;

// Whole numbers are indices and targets: zero is a valid one of every kind.
std::vector<at::Tensor> tensors_of(const std::vector<Border>& borders) {
  std::vector<at::Tensor> tensors;
  for (const Border& b : borders)
    tensors.push_back(at::full(b.dims, c10::isFloatingType(b.type) ? 0.5 : 0.0, b.type));
  return tensors;
}

std::vector<at::Tensor> parameters_of(const Block& block) {
  std::vector<at::Tensor> tensors;
  for (const Parameter& p : block.parameters) tensors.push_back(at::full(p.dims, 0.01, at::kFloat));
  return tensors;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
}

/// The memory that a segment runs in.
class Bench {
 public:
  Bench(const Block& block, const SegmentWiring& wiring)
      : segment_(*block.segments[static_cast<size_t>(wiring.segment)]),
        parameters_(parameters_of(block)),
        gradients_(parameters_of(block)),
        in_(tensors_of(wiring.inputs)),
        out_(tensors_of(wiring.outputs)),
        grad_in_(tensors_of(wiring.inputs)),
        grad_out_(tensors_of(wiring.outputs)),
        saved_(at::full({segment_.saved_bytes()}, 0, at::kByte)),
        work_(at::full({segment_.work_bytes()}, 0, at::kByte)),
        deferred_(at::full({segment_.deferred_bytes()}, 0, at::kByte)) {
    pass_.block = wiring.block;
    for (size_t i = 0; i < grad_in_.size(); ++i)
      if (!wiring.wanted[i]) grad_in_[i] = at::Tensor();
    for (size_t i = 0; i < grad_out_.size(); ++i)
      if (!floating(wiring.outputs[i]) || wiring.outputs[i].name == "loss")
        grad_out_[i] = at::Tensor();
  }

  SegmentSeconds run() {
    std::vector<double> forward, input, weight;
    for (int i = 0; i <= kTimes; ++i) {
      std::shared_ptr<void> kept;
      Context context{pass_, parameters_, {}, bytes_of(saved_), bytes_of(work_), kept};
      const double f = seconds([&] { segment_.forward(context, in_, out_); });
      context.gradients = gradients_;
      context.deferred = bytes_of(deferred_);
      double b = 0, w = 0;
      if (segment_.splits()) {
        b = seconds([&] { segment_.backward_input(context, in_, out_, grad_out_, grad_in_); });
        w = seconds([&] { segment_.backward_weight(context, in_, out_); });
      } else {
        b = w = 0.5 * seconds([&] { segment_.backward(context, in_, out_, grad_out_, grad_in_); });
      }
      if (i == 0) continue;  // the first one touches memory that is not there yet
      forward.push_back(f);
      input.push_back(b);
      weight.push_back(w);
    }
    return {lower_quarter(forward), lower_quarter(input), lower_quarter(weight)};
  }

 private:
  template <class F>
  double seconds(const F& f) {
    const Time begin = clock_.now();
    f();
    return std::chrono::duration<double>(clock_.now() - begin).count();
  }
  /// The time of an undisturbed call, since others may use the machine, too.
  static double lower_quarter(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 4];
  }

  const Segment& segment_;
  std::vector<at::Tensor> parameters_, gradients_, in_, out_, grad_in_, grad_out_;
  at::Tensor saved_, work_, deferred_;
  Pass pass_;
  SystemClock clock_;
};

}  // namespace

std::vector<std::vector<SegmentSeconds>> time_segments(const Model& model) {
  std::vector<std::vector<SegmentSeconds>> seconds;
  for (const Block& block : model.blocks) seconds.emplace_back(block.segments.size());
  std::map<std::string, SegmentSeconds> known;
  for (const SegmentWiring& wiring : wire(model)) {
    const Block& block = model.blocks[static_cast<size_t>(wiring.block)];
    const std::string key = segment_key(block, wiring);
    auto found = known.find(key);
    if (found == known.end()) found = known.emplace(key, Bench(block, wiring).run()).first;
    seconds[static_cast<size_t>(wiring.block)][static_cast<size_t>(wiring.segment)] = found->second;
  }
  return seconds;
}

}  // namespace tutti
