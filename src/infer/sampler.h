// Text from a trained GPT: one byte or token at a time, keyed by the seed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "data/text/tokenizer.h"
#include "model/core/runner.h"
#include "model/make_model.h"
#include "state/units.h"

namespace tutti {

class Sampler {
 public:
  /// Runs the job's model with one sample per micro-batch on the given units (which must outlive
  /// it), where `options` says. Throws Error for a model that was trained on a file of tokens, and
  /// for one in columns.
  Sampler(const Job& job, const MakeModel& make_model, const Units& units,
          std::shared_ptr<const Tokenizer> tokenizer = nullptr, const RunnerOptions& options = {});
  ~Sampler();
  /// The prompt followed by `length` drawn bytes (tokens until at least so many bytes are there),
  /// or by fewer: `enough`, if given, is asked before every draw.
  std::string text(const std::string& prompt, int64_t length, uint64_t seed,
                   double temperature = 0.8, const std::function<bool()>& enough = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
