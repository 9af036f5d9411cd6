// Opens the data over the launcher's rendezvous, since no transport exists yet, and describes the
// model.
#include "train/worker.h"

#include "config/isa.h"
#include "config/timeout.h"
#include "data/core/resample.h"
#include "model/adapt/adaptor.h"
#include "model/core/dry_run.h"
#include "model/core/wiring.h"
#include "tensor/threads.h"
#include "train/golden.h"

namespace tutti {

namespace {

/// The launcher's rendezvous serves before any transport is there. Reading may take its time.
DataGroup data_group(const Job& job, RankContext& context) {
  return {context.rank, context.size, [&job, &context](const std::string& mine) {
            std::vector<std::string> all;
            for (const Card& card : context.rendezvous.exchange(
                     {.bytes = mine}, context.while_working(timeout_of(job))))
              all.push_back(card.bytes);
            return all;
          }};
}

}  // namespace

Worker::Worker(const Job& the_job, const Model& the_model, RankContext& the_context,
               OwnPartition own, RankDevice* the_device)
    : job(the_job),
      model(the_model),
      context(the_context),
      device(the_device != nullptr && *the_device ? the_device : nullptr),
      own_partition(std::move(own)),
      batch(batch_of(job.train)),
      data(open_data(job, data_group(job, context))),
      shape(describe(model)),
      updater(job, shape, path_of(job.layout, context.rank)),
      order(make_order(job, *data.train)),
      progress(first_progress(job)) {
  prepare_compute_thread(1);
  check_golden(path_of(job.layout, context.rank));
  if (job.layout.workers == Workers::kThread) check_thread_ranks(model);
}

bool by_libraries(const Job& job, const Model& model) {
  return job.numerics.device == DeviceKind::kCpu &&
         (job.numerics.matmul == MatmulKind::kMkl || by_torch(model));
}

void Worker::measure() {
  if (measured_) return;
  if (device == nullptr) {
    dry_run(model, shape);
  } else {
    dry_run(model, shape, *device->device, device->at_device(), compute_type(job));
  }
  measured_ = true;
}

}  // namespace tutti
