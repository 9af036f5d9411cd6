// New records from a trained autoencoder: codes, drawn by the seed, that its decoder decodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "infer/trained.h"

namespace tutti {

class Generator {
 public:
  /// The decoder of a run's model, as the run's `job` describes it. Throws Error naming the run
  /// where its model generates nothing, or nothing is known of where its codes are.
  Generator(const std::string& run, const Job& job);
  /// Values of one sample.
  int64_t width() const { return width_; }
  /// `count` samples, one after the other. A sample depends on the seed and its number alone.
  std::vector<float> samples(int64_t count, uint64_t seed);

 private:
  const int64_t width_, code_width_;
  Trained decoder_;
};

}  // namespace tutti
