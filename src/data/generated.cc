// Data that needs no file: every value is a draw keyed by (seed, record).
#include "base/philox.h"
#include "data/sources.h"

namespace tutti {
namespace {

// The second word of a key tells the streams apart; part of the job's meaning.
constexpr uint64_t kWalk = 0, kPoint = 1, kCentre = 2;
constexpr uint64_t kStepSizes = 5;  // 0..4
constexpr float kSpread = 1.0f;     // of the centres, against noise of standard deviation 1

/// Records past kGenerated wrap nowhere: there are 2^63 of them.
class Generated : public Dataset {
 public:
  int64_t size() const final { return INT64_MAX; }
};

class Walk final : public Generated {
 public:
  Walk(uint64_t seed, int64_t context, int64_t vocab) : seed_(seed), context_(context), vocab_(vocab) {}
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    int64_t* tokens = tensors[0].mutable_data_ptr<int64_t>() + row * context_;
    int64_t* targets = tensors[1].mutable_data_ptr<int64_t>() + row * context_;
    const PhiloxStream stream =
        philox_stream({.seed = seed_, .purpose = Purpose::kData, .a = static_cast<uint64_t>(record), .b = kWalk});
    std::array<uint32_t, 4> words{};
    uint64_t place = 0;
    for (int64_t i = -1; i <= context_; ++i) {  // word 0 is the start, word 1 + i the step to place i
      const auto word = static_cast<uint32_t>(i + 1);
      if (word % 4 == 0) words = philox_raw({stream.counter[0], stream.counter[1], word / 4, 0}, stream.key);
      const uint64_t choices = i < 0 ? static_cast<uint64_t>(vocab_) : kStepSizes;
      place = (place + (words[word % 4] * choices >> 32)) % static_cast<uint64_t>(vocab_);
      if (i >= 0 && i < context_) tokens[i] = static_cast<int64_t>(place);
      if (i > 0) targets[i - 1] = static_cast<int64_t>(place);
    }
  }

 private:
  uint64_t seed_;
  int64_t context_, vocab_;
};

class Points final : public Generated {
 public:
  Points(uint64_t seed, int64_t inputs, int64_t classes)
      : seed_(seed), inputs_(inputs), classes_(classes), centres_(static_cast<size_t>(inputs * classes)) {
    const PhiloxKey key{.seed = seed, .purpose = Purpose::kData, .a = 0, .b = kCentre};
    for (size_t i = 0; i < centres_.size(); ++i) centres_[i] = kSpread * static_cast<float>(philox_normal(key, i));
  }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    const PhiloxKey key{.seed = seed_, .purpose = Purpose::kData, .a = static_cast<uint64_t>(record), .b = kPoint};
    const auto label = static_cast<int64_t>(philox_below(key, 0, static_cast<uint64_t>(classes_)));
    float* features = tensors[0].mutable_data_ptr<float>() + row * inputs_;
    const float* centre = centres_.data() + label * inputs_;
    for (int64_t i = 0; i < inputs_; ++i) {
      features[i] = centre[i] + static_cast<float>(philox_normal(key, static_cast<uint64_t>(i) + 2));  // block 0: label
    }
    tensors[1].mutable_data_ptr<int64_t>()[row] = label;
  }

 private:
  uint64_t seed_;
  int64_t inputs_, classes_;
  std::vector<float> centres_;
};

}  // namespace

std::shared_ptr<const Dataset> make_walk(uint64_t seed, int64_t context, int64_t vocab) {
  return std::make_shared<Walk>(seed, context, vocab);
}

std::shared_ptr<const Dataset> make_points(uint64_t seed, int64_t inputs, int64_t classes) {
  return std::make_shared<Points>(seed, inputs, classes);
}

}  // namespace tutti
