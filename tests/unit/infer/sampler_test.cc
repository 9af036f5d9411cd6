// Text from a GPT whose next token is fixed by the bias of its head.
#include "infer/sampler.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "config/model_rules.h"

namespace tutti {
namespace {

Job job_in(int64_t slices) {
  Job job = parse_job(R"(
[model]
kind = "gpt"
layers = 1
width = 8
heads = 2
context = 6
[data]
kind = "walk"
)",
                      "job", {{"train.tensor_slices", std::to_string(slices)}});
  resolve(job, this_machine(), {});
  return job;
}

/// What the model writes after "x" if the bias of one token is far above the others.
std::string text_of(const Job& job, uint8_t token) {
  const Model model = make_model(job);
  const ModelShape shape = describe(model);
  Accounts accounts;
  Units units(model, shape, all_held(shape), {}, 1, {}, accounts);
  const int head = shape.block_at(shape.layers() - 1, 0);
  for (const ParameterShape& p : shape.blocks[static_cast<size_t>(head)].parameters)
    if (p.name.ends_with("head.bias")) units.parameters(head, p.offset)[token] = 1e3F;
  return Sampler(job, make_model, units).text("x", 4, 1);
}

TEST(Sampler, WritesTheLikeliestTokens) {
  EXPECT_EQ(text_of(job_in(1), 'a'), "xaaaa");
  EXPECT_EQ(text_of(job_in(1), 0xc8), "x\xc8\xc8\xc8\xc8");
}

TEST(Sampler, RefusesAModelInColumns) {
  // Its logits are in parts, and the parts of a micro-batch meet in exchanges.
  try {
    text_of(job_in(2), 'a');
    ADD_FAILURE() << "it writes";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "train.tensor_slices = 2: a model in columns writes no text");
  }
}

}  // namespace
}  // namespace tutti
