// Backward in two parts gives the bits of backward in one on a GPU, too, in every precision.
#include "gpu/model_case.h"
#include "model/adapt/adaptor.h"
#include "unit/model/support/hand_run.h"

namespace tutti {
namespace {

class GpuSplitBackward : public GpuTest {
 protected:
  void expect_splits(Job job, const std::string& precision) {
    SCOPED_TRACE(job.model.kind + " in " + precision);
    job.numerics.device = DeviceKind::kCuda;
    job.numerics.precision = *value_named<Precision>(precision);
    const Model model = make_model(job);
    const at::Device place(at::kCUDA, 0);
    std::vector<at::Tensor> data;
    for (const at::Tensor& tensor : model_case::data_of(job, model))
      data.push_back(tensor.to(place));
    const GpuArray<StepKeys> keys(*device, stream, std::vector<StepKeys>{{3, 32}});
    Pass pass;
    pass.seed = 5, pass.first_sample = 8, pass.keys = keys.data();
    const bool by_hand = job.model.kind == "gpt" && !job.model.autograd;
    // autograd's matmuls cast for themselves
    const auto low = by_hand ? compute_type(job) : at::kFloat;
    test::expect_same_parts(test::HandRun(model, test::waves(model, place), data, pass, low),
                            model);
  }
  void expect_splits(const Job& job) {
    for (const char* precision : {"float32", "bfloat16", "float16"}) expect_splits(job, precision);
  }
};

TEST_F(GpuSplitBackward, OfTheGptHasTheBitsOfTheWhole) {
  for (const double dropout : {0.0, 0.2})
    for (const bool llama : {false, true}) {
      Job job = model_case::gpt_job();
      job.model.autograd = false;
      job.model.tied = !llama;
      job.model.dropout = dropout;
      if (llama) {
        job.model.positions = Positions::kRotary, job.model.norm = NormKind::kRms,
        job.model.activation = Activation::kSwiglu;
        job.model.kv_heads = 2, job.model.bias = false;
      }
      expect_splits(job);
    }
}

TEST_F(GpuSplitBackward, OfAutogradsLayersHasTheBitsOfTheWhole) {
  for (const int64_t slices : {1, 2}) {  // of one column, and of two
    Job mlp = model_case::mlp_job(), cnn = model_case::cnn_job();
    mlp.model.dropout = cnn.model.dropout = 0.2;
    mlp.train.tensor_slices = cnn.train.tensor_slices = slices;
    expect_splits(mlp);
    cnn.model.residual = slices > 1;  // in one column residual blocks have two layers in a segment
    expect_splits(cnn);
  }
}

}  // namespace
}  // namespace tutti
