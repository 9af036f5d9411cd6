// A CNN with its memory and one micro-batch, for the tests that run it whole.
#pragma once

#include <ATen/ops/empty.h>

#include <string>
#include <vector>

#include "base/philox.h"
#include "base/processor.h"
#include "model/cnn/cnn.h"
#include "tensor/kernels.h"
#include "unit/model/support/twin_case.h"

namespace tutti::test {

inline Job small_cnn() {
  Job job;
  job.model.kind = "cnn";
  job.model.image = {1, 12, 12};
  job.model.channels = {16, 24};
  job.model.depth = 1;
  job.model.residual = true;
  job.model.pool = Pool::kMax;
  job.model.norm = NormKind::kBatch;
  job.model.activation = Activation::kRelu;
  job.model.classes = 5;
  job.model.init = InitKind::kHeNormal;
  job.loss.kind = "cross-entropy";
  job.train.micro_batch_size = 6;
  job.layout.isa = "avx2";
  job.numerics.matmul = MatmulKind::kOwn;
  return job;
}

class CnnCase : public TwinCase {
 public:
  explicit CnnCase(const Job& job) : TwinCase(make_cnn(job)) {
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      const BlockShape& block = shape.blocks[b];
      float* unit = units[b];
      for (size_t i = 0; i < block.parameters.size(); ++i) {
        const ParameterShape& p = block.parameters[i];
        initialise(model.blocks[b].parameters[i], p.name, 3,
                   {unit + p.offset, static_cast<size_t>(p.size)});
        if (p.dims.size() > 1) continue;
        // Norms, biases and buffers away from their start, so that no gradient is zero by symmetry.
        for (int64_t e = 0; e < p.size; ++e)
          unit[p.offset + e] +=
              0.3f * static_cast<float>(philox_uniform({3, Purpose::kTest, b, i}, e));
      }
    }
    const std::vector<int64_t>& image = job.model.image;
    const int64_t batch = job.train.micro_batch_size;
    images = at::empty({batch, image[0], image[1], image[2]}, at::kFloat);
    for (int64_t i = 0; i < images.numel(); ++i)
      images.mutable_data_ptr<float>()[i] =
          static_cast<float>(philox_normal({4, Purpose::kTest, 0, 0}, i));
    targets = at::empty({batch}, at::kLong);
    for (int64_t i = 0; i < batch; ++i)
      targets.mutable_data_ptr<int64_t>()[i] =
          i == 1
              ? -1
              : static_cast<int64_t>(philox_below({4, Purpose::kTest, 1, 0}, i, job.model.classes));
    start({images, targets});
  }

  Loss forward(bool training = true) {
    pass.training = training;
    return TwinCase::forward();
  }

  at::Tensor images, targets;
};

}  // namespace tutti::test
