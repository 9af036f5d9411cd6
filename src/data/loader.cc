// A ring of depth + 1 micro-batches between two threads: the reader fills ahead, next() hands out. The extra one is the
// micro-batch that the caller holds. Two counters are all that they share; each side waits for the other's through the
// clock.
#include "data/loader.h"

#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "grid/order.h"

namespace tutti {

struct Loader::Impl {
  Impl(LoaderOptions given, Clock& time, const Cancel* stop)
      : options(std::move(given)),
        clock(time),
        cancel(stop),
        per_step(options.lanes.size() * options.batch.micro_batches) {
    TUTTI_CHECK(options.depth > 0 && per_step > 0, "a loader of depth {} for {} micro-batches a step", options.depth,
                per_step);
    if (options.data->size() == 0) throw Error("the data has no records to train on");
    for (int i = 0; i <= options.depth; ++i) ring.push_back(allocate(options.borders));
  }

  struct Place {
    int64_t step;
    int lane, micro;
    bool operator==(const Place&) const = default;
  };
  Place place(int64_t index) const {
    const int64_t within = index % per_step;
    return {options.first_step + index / per_step,
            static_cast<int>(options.lanes.begin + within / options.batch.micro_batches),
            static_cast<int>(within % options.batch.micro_batches)};
  }

  const std::vector<at::Tensor>& slot(int64_t index) const { return ring[static_cast<size_t>(index) % ring.size()]; }

  void fill(int64_t index) const {
    const Place at = place(index);
    const int64_t first = first_sample(options.batch, at.step, at.lane, at.micro);
    std::vector<int64_t> records(static_cast<size_t>(options.batch.micro_batch_size));
    options.order.records(static_cast<uint64_t>(first), records);
    options.data->read_rows(records, slot(index), 0);
  }

  void run() {
    const auto room = [this] {
      return stopping.load() || filled.load() - released.load() < static_cast<int64_t>(ring.size());
    };
    try {
      while (clock.wait(emptied, room, Deadline::never(), cancel) == WaitResult::kReady && !stopping.load()) {
        fill(filled.load());
        filled.fetch_add(1);
        clock.notify(ready);
      }
    } catch (...) {
      error = std::current_exception();
      failed.store(true);
      clock.notify(ready);
    }
  }

  const LoaderOptions options;
  Clock& clock;
  const Cancel* const cancel;
  const int64_t per_step;
  std::vector<std::vector<at::Tensor>> ring;

  std::atomic<int64_t> filled{0};    // written by the reader
  std::atomic<int64_t> released{0};  // written by next(): micro-batches whose tensors may be filled again
  std::atomic<bool> stopping{false}, failed{false};
  std::exception_ptr error;  // published by `failed`
  Signal ready, emptied;
  int64_t taken = 0;  // next()'s own
  std::atomic<int64_t> stalled{0};
  std::thread reader;
};

Loader::Loader(LoaderOptions options, Clock& clock, const Cancel* cancel)
    : impl_(std::make_unique<Impl>(std::move(options), clock, cancel)) {
  impl_->reader = std::thread([impl = impl_.get()] { impl->run(); });
}

Loader::~Loader() {
  impl_->stopping.store(true);
  impl_->clock.notify(impl_->emptied);
  impl_->reader.join();
}

const std::vector<at::Tensor>& Loader::next(int64_t step, int lane, int micro) {
  Impl& s = *impl_;
  const Impl::Place expected = s.place(s.taken);
  TUTTI_CHECK((expected == Impl::Place{step, lane, micro}),
              "micro-batch (step {}, lane {}, micro {}) asked for, (step {}, lane {}, micro {}) is next", step, lane,
              micro, expected.step, expected.lane, expected.micro);
  s.released.store(s.taken);
  s.clock.notify(s.emptied);
  const auto there = [&s] { return s.filled.load() > s.taken || s.failed.load(); };
  if (!there()) {
    const Time begin = s.clock.now();
    const WaitResult result = s.clock.wait(s.ready, there, Deadline::never(), s.cancel);
    s.stalled.fetch_add((s.clock.now() - begin).count());
    if (result != WaitResult::kReady) {
      throw Error(fmt::format("waiting for the data of step {} was given up: {}", step, s.cancel->reason()));
    }
  }
  if (s.filled.load() <= s.taken) std::rethrow_exception(s.error);
  return s.slot(s.taken++);
}

uint64_t Loader::digest() const { return 0; }

Duration Loader::stalled() const { return Duration(impl_->stalled.load()); }

}  // namespace tutti
