// Data that needs no file: every value is a draw keyed by (seed, record), so any rank can read
// any record.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/philox.h"
#include "base/portable_math.h"
#include "config/job_parts.h"
#include "data/core/sources.h"

namespace tutti {
namespace {

// The second word of a key tells the streams apart; it is part of the job's meaning.
constexpr uint64_t kWalk = 0, kPoint = 1, kCentre = 2, kClick = 3, kTruth = 4;
constexpr uint64_t kStepSizes = 5;  // 0..4
constexpr float kSpread = 1.0f;     // deviation of the centres; noise has deviation 1

/// Records that are generated. They do not repeat: there are 2^63 of them.
class Generated : public Dataset {
 public:
  int64_t size() const final { return INT64_MAX; }
};

// A random walk over the bytes: a model can learn that the next byte is 0 to 4 further on.
class Walk final : public Generated {
 public:
  Walk(uint64_t seed, int64_t context, int64_t vocab)
      : seed_(seed), context_(context), vocab_(vocab) {}
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    int64_t* tokens = tensors[0].mutable_data_ptr<int64_t>() + row * context_;
    int64_t* targets = tensors[1].mutable_data_ptr<int64_t>() + row * context_;
    const PhiloxStream stream = philox_stream(
        {.seed = seed_, .purpose = Purpose::kData, .a = static_cast<uint64_t>(record), .b = kWalk});
    std::array<uint32_t, 4> words{};
    uint64_t place = 0;
    // Word 0 is the start, word 1 + i the step to place i. The place after the last is only
    // a target.
    for (int64_t i = -1; i <= context_; ++i) {
      const auto word = static_cast<uint32_t>(i + 1);
      if (word % 4 == 0)
        words = philox_raw({stream.counter[0], stream.counter[1], word / 4, 0}, stream.key);
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

// A gaussian blob for every class.
class Points final : public Generated {
 public:
  Points(uint64_t seed, int64_t inputs, int64_t classes)
      : seed_(seed),
        inputs_(inputs),
        classes_(classes),
        centres_(static_cast<size_t>(inputs * classes)) {
    const PhiloxKey key{.seed = seed, .purpose = Purpose::kData, .a = 0, .b = kCentre};
    for (size_t i = 0; i < centres_.size(); ++i)
      centres_[i] = kSpread * static_cast<float>(philox_normal(key, i));
  }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    const PhiloxKey key = key_of(record);
    const int64_t label = this->label(record);
    float* features = tensors[0].mutable_data_ptr<float>() + row * inputs_;
    const float* centre = centres_.data() + label * inputs_;
    for (int64_t i = 0; i < inputs_; ++i) {
      // draw 0 of the key is the label, so features begin at 2
      features[i] =
          centre[i] + static_cast<float>(philox_normal(key, static_cast<uint64_t>(i) + 2));
    }
    tensors[1].mutable_data_ptr<int64_t>()[row] = label;
  }
  int64_t label(int64_t record) const override {
    return static_cast<int64_t>(philox_below(key_of(record), 0, static_cast<uint64_t>(classes_)));
  }

 private:
  PhiloxKey key_of(int64_t record) const {
    return {
        .seed = seed_, .purpose = Purpose::kData, .a = static_cast<uint64_t>(record), .b = kPoint};
  }
  uint64_t seed_;
  int64_t inputs_, classes_;
  std::vector<float> centres_;
};

// Clicks and their truth:
//   numbers x[i]     uniform over [-sqrt 3, sqrt 3), so their deviation is 1
//   categories v[f]  16 u^2 rounded down: low values are common, high ones rare
//   logit            kBias + sum w[i] x[i] + sum effect[f][v[f]] + sum both[p][v[2p], v[2p + 1]]
//                    over 3 pairs p
//   click            with probability 1 / (1 + exp(-logit))
// The logit's deviation is about 2.5. A fourth of its square comes from the numbers and some 40 %
// from the pairs, which no sum over single categories can express.
constexpr double kBias = -0.5, kLinear = 0.45, kEffect = 0.6, kBoth = 1.0;
constexpr int64_t kNumbers = kClickFields.numbers, kCategories = kClickFields.categories,
                  kValues = kClickFields.values, kPairs = kCategories / 2;

// One record as it is drawn.
struct Click {
  std::array<float, kNumbers> numbers;
  std::array<int64_t, kCategories> categories;
  float toss;  ///< in [0, 1): a click if below the truth
};

Click draw_click(uint64_t seed, int64_t record) {
  const PhiloxStream stream = philox_stream(
      {.seed = seed, .purpose = Purpose::kData, .a = static_cast<uint64_t>(record), .b = kClick});
  std::array<uint32_t, 16> words{};
  static_assert(kNumbers + kCategories < 16);
  for (uint32_t block = 0; block < 4; ++block) {
    const auto four = philox_raw({stream.counter[0], stream.counter[1], block, 0}, stream.key);
    std::copy(four.begin(), four.end(), words.begin() + 4 * block);
  }

  // One word per value, in a fixed order: numbers, categories, the toss.
  Click click{};
  constexpr double kRoot3 = 1.7320508075688772;
  const uint32_t* word = words.data();
  for (float& x : click.numbers)
    x = static_cast<float>((static_cast<double>(*word++ >> 8) * 0x1p-23 - 1) * kRoot3);
  for (int64_t& value : click.categories) {
    const uint64_t u = *word++;
    value = static_cast<int64_t>((u * u >> 32) * kValues >> 32);
  }
  click.toss = static_cast<float>(*word >> 8) * 0x1p-24f;
  return click;
}

// The weights that the clicks follow, which a model has to find.
class Truth {
 public:
  explicit Truth(uint64_t seed) {
    const PhiloxKey key{.seed = seed, .purpose = Purpose::kData, .a = 0, .b = kTruth};
    uint64_t draw = 0;
    for (double& w : linear_) w = kLinear * philox_normal(key, draw++);
    for (auto& field : effect_) {
      for (double& value : field) value = kEffect * philox_normal(key, draw++);
    }
    for (auto& pair : both_) {
      for (double& value : pair) value = kBoth * philox_normal(key, draw++);
    }
  }
  double probability(const Click& click) const {
    double logit = kBias;
    for (size_t i = 0; i < linear_.size(); ++i)
      logit += linear_[i] * static_cast<double>(click.numbers[i]);
    for (size_t f = 0; f < effect_.size(); ++f)
      logit += effect_[f][static_cast<size_t>(click.categories[f])];
    for (size_t p = 0; p < both_.size(); ++p) {
      logit += both_[p][static_cast<size_t>(click.categories[2 * p] * kValues +
                                            click.categories[2 * p + 1])];
    }
    return 1 / (1 + portable::exp(-logit));
  }

 private:
  std::array<double, kNumbers> linear_;
  std::array<std::array<double, kValues>, kCategories> effect_;
  std::array<std::array<double, kValues * kValues>, kPairs> both_;
};

class Clicks final : public Generated {
 public:
  explicit Clicks(uint64_t seed) : seed_(seed), truth_(seed) {}
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    const Click click = draw_click(seed_, record);
    std::copy(click.numbers.begin(), click.numbers.end(),
              tensors[0].mutable_data_ptr<float>() + row * kNumbers);
    std::copy(click.categories.begin(), click.categories.end(),
              tensors[1].mutable_data_ptr<int64_t>() + row * kCategories);
    tensors[2].mutable_data_ptr<float>()[row] = is_click(click) ? 1 : 0;
  }
  int64_t label(int64_t record) const override {
    return is_click(draw_click(seed_, record)) ? 1 : 0;
  }

 private:
  bool is_click(const Click& click) const { return click.toss < truth_.probability(click); }
  uint64_t seed_;
  Truth truth_;
};

}  // namespace

std::shared_ptr<const Dataset> make_clicks(uint64_t seed) { return std::make_shared<Clicks>(seed); }

double clicks_truth(uint64_t seed, int64_t record) {
  return Truth(seed).probability(draw_click(seed, record));
}

// The mean loss of the true probabilities, which no model can expect to beat.
double clicks_truth_loss(uint64_t seed, int64_t held_out) {
  const Truth truth(seed);
  double sum = 0;
  for (int64_t i = 0; i < held_out; ++i) {
    const Click click = draw_click(seed, kGenerated + i);
    const double p = truth.probability(click);
    sum -= portable::log(click.toss < p ? p : 1 - p);
  }
  return sum / static_cast<double>(std::max<int64_t>(held_out, 1));
}

std::shared_ptr<const Dataset> make_walk(uint64_t seed, int64_t context, int64_t vocab) {
  return std::make_shared<Walk>(seed, context, vocab);
}

std::shared_ptr<const Dataset> make_points(uint64_t seed, int64_t inputs, int64_t classes) {
  return std::make_shared<Points>(seed, inputs, classes);
}

}  // namespace tutti
