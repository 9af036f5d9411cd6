// Runs each kind of segment once on made-up tensors, and counts what ATen allocates meanwhile.
#include "model/core/dry_run.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/fill.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "base/error.h"
#include "model/core/segment_key.h"
#include "model/core/wiring.h"
#include "tensor/allocator.h"

namespace tutti {

namespace {

// Bytes that ATen holds from forward to backward, and at its peak beyond these.
struct Measured {
  int64_t saved = 0, work = 0;
};

/// Counts what ATen allocates during one call: what is still held after it, and the most that was
/// held at one time.
struct Meter {
  std::function<void(const std::function<void()>&)> run;  ///< calls it and measures
  std::function<int64_t()> held, peak;                    ///< of the last run
};

/// Makes the tensors that a segment is run with. Their own memory is not part of what is measured.
class Bench {
 public:
  Bench() = default;
  Bench(Device& device, at::Device place) : device_(&device), place_(place) {}
  ~Bench() {
    for (const auto& memory : taken_) device_->give_back(memory);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // Integers are indices and targets, for which zero is always valid. Memory of a device is zero
  // when it is taken.
  at::Tensor filled(const std::vector<int64_t>& dims, at::ScalarType type, double value) {
    if (device_ == nullptr) return at::full(dims, value, type);
    int64_t bytes = static_cast<int64_t>(c10::elementSize(type));
    for (int64_t d : dims) bytes *= d;
    if (bytes == 0) return at::empty(dims, at::TensorOptions().dtype(type).device(place_));
    taken_.push_back(device_->take(BufferKind::kWork, static_cast<size_t>(bytes)));
    at::Tensor tensor = at::for_blob(taken_.back().data(), dims)
                            .options(at::TensorOptions().dtype(type).device(place_))
                            .target_device(place_)
                            .make_tensor();
    if (value != 0) tensor.fill_(value);
    return tensor;
  }
  std::vector<at::Tensor> borders(const std::vector<Border>& borders,
                                  const std::vector<at::ScalarType>& types = {}) {
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < borders.size(); ++i)
      tensors.push_back(filled(borders[i].dims, types.empty() ? borders[i].type : types[i],
                               floating(borders[i]) ? 1 : 0));
    return tensors;
  }
  std::vector<at::Tensor> parameters(const Block& block, at::ScalarType type) {
    std::vector<at::Tensor> tensors;
    for (const Parameter& p : block.parameters) tensors.push_back(filled(p.dims, type, 0));
    return tensors;
  }

 private:
  Device* device_ = nullptr;
  at::Device place_ = at::kCPU;
  std::vector<std::span<std::byte>> taken_;
};

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel())};
}

Measured measure(const Block& block, const SegmentWiring& wiring, int index, Bench& bench,
                 at::ScalarType precision, const std::function<Meter()>& meter) {
  const Segment& segment = *block.segments[wiring.segment];
  const auto parameters = bench.parameters(block, at::kFloat),
             gradients = bench.parameters(block, at::kFloat);

  // The segment gets what the plan would give it: parameters, borders, and gradients where they
  // are wanted.
  const auto low =
      precision == at::kFloat ? std::vector<at::Tensor>{} : bench.parameters(block, precision);
  const auto in = bench.borders(wiring.inputs);
  auto out = bench.borders(wiring.outputs),
       grad_out = bench.borders(wiring.outputs, wiring.read_types),
       grad_in = bench.borders(wiring.inputs, wiring.grad_types);
  for (size_t i = 0; i < grad_in.size(); ++i)
    if (!wiring.wanted[i]) grad_in[i] = at::Tensor();

  // Passed-on outputs share their input's memory, as in a plan; the loss has no gradient
  // from outside.
  for (size_t i = 0; i < grad_out.size(); ++i) {
    if (const int input = wiring.same_as[i]; input >= 0) {
      out[i] = in[input];
      grad_out[i] = grad_in[input];
    }
    if (!floating(wiring.outputs[i]) || wiring.outputs[i].name == "loss")
      grad_out[i] = at::Tensor();
  }
  const at::Tensor saved = bench.filled({segment.saved_bytes()}, at::kByte, 0),
                   work = bench.filled({segment.work_bytes()}, at::kByte, 0);
  std::shared_ptr<void> kept;
  Pass pass;
  pass.block = index;
  Context context{pass, parameters, {}, bytes_of(saved), bytes_of(work), kept, nullptr, low};

  Measured measured;

  // Each direction has a meter of its own, since a peak never sinks.
  const Meter forward = meter(), backward = meter();
  forward.run([&] { segment.forward(context, in, out); });
  measured.saved = forward.held();
  measured.work = forward.peak() - measured.saved;

  // Dropping the graph belongs to backward: a runner does it there, too.
  context.gradients = gradients;
  backward.run([&] {
    segment.backward(context, in, out, grad_out, grad_in);
    kept.reset();
  });
  measured.work = std::max(measured.work, backward.peak());
  return measured;
}

/// ATen's allocations on the host.
Meter host_meter() {
  struct Book {
    Accounts accounts;
    Ledger ledger{accounts};
  };
  auto book = std::make_shared<Book>();
  return {[book](const std::function<void()>& call) {
            AllocationScope scope(book->ledger, BufferKind::kWork);
            call();
          },
          [book] { return book->accounts.current(BufferKind::kWork); },
          [book] { return book->accounts.peak(BufferKind::kWork); }};
}

/// ATen's allocations on a device, on top of what its pool held before.
Meter device_meter(Device& device) {
  auto before = std::make_shared<int64_t>(0);
  return {[before, &device](const std::function<void()>& call) {
            *before = device.pool().current;
            device.reset_pool_peak();
            call();
          },
          [before, &device] { return device.pool().current - *before; },
          [before, &device] { return device.pool().peak - *before; }};
}

void measure_all(const Model& model, ModelShape& shape,
                 const std::function<std::unique_ptr<Bench>()>& bench, at::ScalarType precision,
                 const std::function<Meter()>& meter) {
  std::map<std::string, Measured> known;

  // The blocks of a deep model are mostly alike, so few segments run at all.
  for (const SegmentWiring& wiring : wire(model)) {
    const Block& block = model.blocks[wiring.block];
    const std::string key = segment_key(block, wiring);
    auto found = known.find(key);
    if (found == known.end())
      found = known.emplace(key, measure(block, wiring, wiring.block, *bench(), precision, meter))
                  .first;
    SegmentShape& s = shape.blocks[wiring.block].segments[wiring.segment];
    s.saved_bytes = block.segments[wiring.segment]->saved_bytes() + found->second.saved;
    s.work_bytes = block.segments[wiring.segment]->work_bytes() + found->second.work;
  }
}

}  // namespace

void dry_run(const Model& model, ModelShape& shape) {
  install_accounting_allocator();
  measure_all(
      model, shape, [] { return std::make_unique<Bench>(); }, at::kFloat, host_meter);
}

void dry_run(const Model& model, ModelShape& shape, Device& device, at::Device place,
             at::ScalarType precision) {
  measure_all(
      model, shape, [&] { return std::make_unique<Bench>(device, place); }, precision,
      [&] { return device_meter(device); });
}

}  // namespace tutti
