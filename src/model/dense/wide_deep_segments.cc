#include "model/dense/wide_deep_segments.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "model/core/carver.h"
#include "model/dense/wide_deep.h"

namespace tutti {

namespace {

void add(float* to, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += x[i];
}
void clear(float* x, int64_t n) { std::memset(x, 0, static_cast<size_t>(n) * sizeof(float)); }

class FieldsEmbed final : public Segment {
 public:
  FieldsEmbed(const FieldRows& fields, const Border& numbers, const Border& categories,
              const Border& out)
      : fields_(fields),
        inputs_{numbers, categories},
        out_(out),
        records_(out.dims[0]),
        numbers_(numbers.dims[1]),
        count_(categories.dims[1]),
        width_((out.dims[1] - numbers_) / count_) {}

  std::string name() const override { return "embed"; }
  std::vector<Border> inputs() const override { return inputs_; }
  std::vector<Border> outputs() const override { return {out_}; }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const float *numbers = floats(in[0]), *table = floats(context.parameters[0]);
    const int64_t* category = ids(in[1]);
    float* to = floats(out[0]);
    for (int64_t r = 0; r < records_; ++r, numbers += numbers_, category += count_) {
      to = std::copy_n(numbers, numbers_, to);
      for (int64_t f = 0; f < count_; ++f)
        to = std::copy_n(table + (category[f] + fields_.starts[f]) * width_, width_, to);
    }
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    float* table = floats(context.gradients[0]);
    clear(table, fields_.rows * width_);
    const int64_t* category = ids(in[1]);
    const float* d = floats(grad_out[0]);
    for (int64_t r = 0; r < records_; ++r, category += count_) {
      if (grad_in[0].defined()) std::copy_n(d, numbers_, floats(grad_in[0]) + r * numbers_);
      d += numbers_;
      for (int64_t f = 0; f < count_; ++f, d += width_)
        add(table + (category[f] + fields_.starts[f]) * width_, d, width_);
    }
  }

 private:
  const FieldRows fields_;
  const std::vector<Border> inputs_;
  const Border out_;
  const int64_t records_, numbers_, count_, width_;
};

class FieldsHead final : public Segment {
 public:
  FieldsHead(const FieldRows& fields, const Kernels& kernels, const Border& hidden,
             const Border& numbers, const Border& categories, const Border& out)
      : fields_(fields),
        k_(kernels),
        inputs_{hidden, numbers, categories},
        out_(out),
        records_(out.dims[0]),
        outputs_(out.dims[1]),
        hidden_(hidden.dims[1]),
        numbers_(numbers.dims[1]),
        count_(categories.dims[1]) {}

  std::string name() const override { return "head"; }
  std::vector<Border> inputs() const override { return inputs_; }
  std::vector<Border> outputs() const override { return {out_}; }
  int64_t work_bytes() const override { return work(Carver{}).bytes; }
  double flops() const override {
    return 2.0 * static_cast<double>(records_ * (hidden_ + numbers_) * outputs_);
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    const Work w = work(Carver(context.work));
    const auto parameter = [&](size_t place) { return floats(context.parameters[place]); };
    float* logits = floats(out[0]);
    k_.matmul.nt(floats(in[0]), parameter(kWeight), logits, records_, outputs_, hidden_, w.scratch);
    k_.add_bias(logits, parameter(kBias), records_, outputs_);

    // The wide part: first the categories, then their pairs, then the numbers.
    if (numbers_ > 0) {
      k_.matmul.nt(floats(in[1]), parameter(kNumbers), w.wide, records_, outputs_, numbers_,
                   w.scratch);
    } else {
      clear(w.wide, records_ * outputs_);
    }
    for (int64_t r = 0; r < records_; ++r) {
      float* row = logits + r * outputs_;
      for_rows(in, r, [&](Place table, int64_t at) {
        add(row, parameter(table) + at * outputs_, outputs_);
      });
      add(row, w.wide + r * outputs_, outputs_);
    }
  }

  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    const Work w = work(Carver(context.work));
    const auto gradient = [&](size_t place) { return floats(context.gradients[place]); };
    const float* d = floats(grad_out[0]);
    k_.column_sums(d, gradient(kBias), records_, outputs_);
    k_.matmul.tn(d, floats(in[0]), gradient(kWeight), outputs_, hidden_, records_, w.scratch);
    if (numbers_ > 0)
      k_.matmul.tn(d, floats(in[1]), gradient(kNumbers), outputs_, numbers_, records_, w.scratch);

    clear(gradient(kCategories), fields_.rows * outputs_);
    clear(gradient(kPairs), kCrosses * outputs_);
    for (int64_t r = 0; r < records_; ++r)
      for_rows(in, r, [&](Place table, int64_t at) {
        add(gradient(table) + at * outputs_, d + r * outputs_, outputs_);
      });

    if (grad_in[0].defined())
      k_.matmul.nn(d, floats(context.parameters[kWeight]), floats(grad_in[0]), records_, hidden_,
                   outputs_, w.scratch);
    if (grad_in[1].defined())
      k_.matmul.nn(d, floats(context.parameters[kNumbers]), floats(grad_in[1]), records_, numbers_,
                   outputs_, w.scratch);
  }

 private:
  enum Place : size_t { kWeight, kBias, kCategories, kPairs, kNumbers };

  /// Calls body(table, row) for every category and every pair of a record.
  template <typename Body>
  void for_rows(Tensors in, int64_t record, Body&& body) const {
    const int64_t* category = ids(in[2]) + record * count_;
    const auto row = [&](int64_t f) {
      return category[f] + fields_.starts[static_cast<size_t>(f)];
    };
    for (int64_t f = 0; f < count_; ++f) body(kCategories, row(f));
    for (int64_t a = 0; a < count_; ++a)
      for (int64_t b = a + 1; b < count_; ++b) body(kPairs, FieldRows::cross(row(a), row(b)));
  }

  struct Work {
    float *scratch, *wide;
    int64_t bytes;
  };
  Work work(Carver memory) const {
    Work w{memory.floats(std::max(k_.matmul.layer_work(records_, hidden_, outputs_),
                                  k_.matmul.layer_work(records_, numbers_, outputs_))),
           memory.floats(records_ * outputs_), 0};
    w.bytes = memory.bytes();
    return w;
  }

  const FieldRows fields_;
  const Kernels& k_;
  const std::vector<Border> inputs_;
  const Border out_;
  const int64_t records_, outputs_, hidden_, numbers_, count_;
};

}  // namespace

int64_t FieldRows::cross(int64_t a, int64_t b) {
  const uint64_t pair = static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b);
  return static_cast<int64_t>((pair * kCrossFactor) >> 40) % kCrosses;
}

std::unique_ptr<Segment> make_fields_embed(const FieldRows& fields, const Border& numbers,
                                           const Border& categories, const Border& out) {
  return std::make_unique<FieldsEmbed>(fields, numbers, categories, out);
}

std::unique_ptr<Segment> make_fields_head(const FieldRows& fields, const Kernels& kernels,
                                          const Border& hidden, const Border& numbers,
                                          const Border& categories, const Border& out) {
  return std::make_unique<FieldsHead>(fields, kernels, hidden, numbers, categories, out);
}

}  // namespace tutti
