// Wide-and-deep against the same model written out in ATen.
#include "model/dense/wide_deep.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "model/make_model.h"
#include "unit/model/support/named_case.h"

namespace tutti {
namespace {

using namespace named_case;  // NOLINT(google-build-using-namespace)

constexpr const char* kJob = R"(
[model]
kind = "wide-deep"
embedding = 3
hidden = [7]
activation = "relu"
init = "he-normal"
[data]
kind = "csv"
path = "x.csv"
columns = ["a: number", "b: number", "c: category hash=5", "d: category x|y|z",
           "e: category hash=4", "t: target"]
[train]
micro_batch_size = 4
)";
constexpr int64_t kFields = 3, kStarts[kFields] = {0, 5, 8}, kRows = 12;

/// numbers, categories, targets; the last one is none.
std::vector<at::Tensor> some_data() {
  const at::Tensor targets = at::tensor({1.0F, 0.0F, 1.0F, NAN}).reshape({4, 1});
  const std::vector<int64_t> categories = {0, 1, 2, 4, 2, 3, 0, 0, 0, 3, 1, 2};
  return {wave({4, 2}, 0), at::tensor(categories).reshape({4, 3}), targets};
}

/// The whole model by its definition, record by record.
at::Tensor reference(const std::vector<at::Tensor>& data, const std::vector<at::Tensor>& p) {
  const auto* categories = data[1].const_data_ptr<int64_t>();
  std::vector<at::Tensor> logits;
  for (int64_t r = 0; r < 4; ++r) {
    std::vector<int64_t> rows;
    for (int64_t f = 0; f < kFields; ++f) rows.push_back(kStarts[f] + categories[r * kFields + f]);
    std::vector<at::Tensor> parts = {data[0][r]};
    at::Tensor wide = at::linear(data[0][r], p[5]);
    for (int64_t row : rows) {
      parts.push_back(p[0][row]);
      wide = wide + p[6][row];
    }
    for (size_t a = 0; a < rows.size(); ++a)
      for (size_t b = a + 1; b < rows.size(); ++b) {
        const uint64_t pair = static_cast<uint64_t>(rows[a]) << 32 | static_cast<uint64_t>(rows[b]);
        wide = wide + p[7][static_cast<int64_t>((pair * 0x9E3779B97F4A7C15ULL) >> 40) % kCrosses];
      }
    const at::Tensor hidden = at::relu(at::linear(at::cat(parts), p[1], p[2]));
    logits.push_back((at::linear(hidden, p[3], p[4]) + wide).unsqueeze(0));
  }
  return at::cat(logits);
}

TEST(WideDeep, IsTheModelThatIsWrittenOutRecordByRecord) {
  FlatModel flat(make_model(resolved(kJob)), 5);
  EXPECT_EQ(flat.model.task, Task::kBinary);
  stir(flat);  // the wide part starts at zero
  const std::vector<at::Tensor> data = some_data();
  flat.runner->forward_all({}, data);
  flat.runner->backward_all({}, data, flat.gradient_pointers);
  const std::vector<std::string> names = {
      "embed.weight",   "layers.0.weight",   "layers.0.bias",        "head.deep.weight",
      "head.deep.bias", "head.wide.numbers", "head.wide.categories", "head.wide.crosses"};
  std::vector<at::Tensor> p;
  for (const std::string& name : names) p.push_back(leaf(flat, name));
  EXPECT_EQ(p[0].sizes().vec(), (std::vector<int64_t>{kRows, 3}));
  EXPECT_EQ(p[7].sizes().vec(), (std::vector<int64_t>{kCrosses, 1}));
  const at::Tensor logits = reference(data, p);
  const at::Tensor loss = at::binary_cross_entropy_with_logits(
      logits.narrow(0, 0, 3), data[2].narrow(0, 0, 3), {}, {}, at::Reduction::Sum);
  const auto grads = torch::autograd::grad({loss}, p);
  EXPECT_TRUE(near(flat.runner->border("logits"), logits, 1e-5));  // float32 sums in another order
  EXPECT_EQ(flat.runner->loss().count, 3);
  EXPECT_NEAR(flat.runner->loss().sum, loss.item<double>(), 1e-5);
  for (size_t i = 0; i < names.size(); ++i)
    EXPECT_TRUE(near(gradient(flat, names[i]), grads[i], 1e-5)) << names[i];
}

TEST(WideDeep, EmbeddingsOfTwoFieldsDoNotMeet) {
  FlatModel flat(make_model(resolved(kJob)), 5);
  std::vector<at::Tensor> data = some_data();
  flat.runner->forward_all({}, data);
  const at::Tensor before = flat.runner->border("logits").clone();
  // the first value of the second field: only record 2 has it
  value(flat, "embed.weight")[5].fill_(9);
  flat.runner->forward_all({}, data);
  const at::Tensor changed = flat.runner->border("logits").ne(before).reshape({4});
  for (int64_t r = 0; r < 4; ++r) EXPECT_EQ(changed[r].item<bool>(), r == 2) << r;
}

TEST(WideDeep, ReadsTheClicksWithoutColumns) {
  const Model model =
      make_model(resolved("[model]\nkind = \"wide-deep\"\n[data]\nkind = \"clicks\"\n"));
  EXPECT_EQ(model.data[0].dims[1], 8);
  EXPECT_EQ(model.data[1].dims[1], 6);
  EXPECT_EQ(describe(model).blocks[0].parameters[0].dims, (std::vector<int64_t>{96, 8}));
}

TEST(WideDeep, NeedsACategoryButNoNumbers) {
  const auto columns = [](const std::string& list) {
    return resolved(
        "[model]\nkind = \"wide-deep\"\nhidden = [4]\n[data]\nkind = \"csv\"\npath = "
        "\"x\"\ncolumns = " +
        list);
  };
  EXPECT_THROW(make_model(columns(R"(["a: number", "t: target"])")), Error);
  FlatModel flat(make_model(columns(R"(["c: category hash=5", "t: target"])")), 5);
  const std::vector<at::Tensor> data = {at::zeros({4, 0}), at::zeros({4, 1}, at::kLong),
                                        wave({4, 1}, 1).abs()};
  flat.runner->forward_all({}, data);
  flat.runner->backward_all({}, data, flat.gradient_pointers);
  EXPECT_GT(flat.runner->loss().sum, 0);
  EXPECT_GT(gradient(flat, "head.wide.categories").abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace tutti
