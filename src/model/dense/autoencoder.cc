// Builds the autoencoder from dense layers, and the part of it that decodes: by hand on the CPU, by
// autograd elsewhere. The code's divergence from a standard normal travels through the decoder as a
// border of its own, since only the last segment may make the loss.
#include "model/dense/autoencoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "config/job_parts.h"
#include "model/adapt/adaptor.h"
#include "model/core/by_hand.h"
#include "model/core/data_borders.h"
#include "model/dense/autoencoder_segments.h"
#include "model/dense/dense.h"
#include "model/dense/keyed_normals.h"
#include "model/loss/loss.h"

namespace tutti {

namespace {

/// Makes the code and its divergence [B]. A variational code is a normal distribution per sample
/// (mean and logarithm of the variance): training draws from it, evaluation takes the mean.
Block code_block(const Job& job, const Border& in, const Border& code, const Border& kl) {
  const bool variational = job.model.variational;
  const int64_t latent = job.model.latent, outputs = variational ? 2 * latent : latent;
  if (by_hand(job)) {
    const Border linear{"statistics", {in.dims[0], outputs}};
    Block block = linear_block(job, "code", in, linear);
    block.segments.push_back(make_code(linear, code, kl));
    return block;
  }
  TensorFunction function = [variational, latent](const Pass& pass, Tensors p, Tensors x) {
    const at::Tensor y = at::linear(x[0], p[0], p[1]).to(at::kFloat);
    if (!variational) return std::vector<at::Tensor>{y, at::zeros({y.size(0)}, y.options())};
    const at::Tensor mean = y.narrow(1, 0, latent), log_variance = y.narrow(1, latent, latent);
    const at::Tensor divergence =
        0.5 * (mean * mean + log_variance.exp() - log_variance - 1).sum(1);
    if (!pass.training) return std::vector<at::Tensor>{mean.contiguous(), divergence};
    const at::Tensor noise = keyed_normals(pass, y.size(0), latent, y.device());
    return std::vector<at::Tensor>{mean + (0.5 * log_variance).exp() * noise, divergence};
  };
  return adapt("code", linear_parameters(job, "", in.dims[1], outputs), std::move(function), {in},
               {code, kl}, built_in_options(job));
}

bool is_bce(const Job& job) { return loss_part(job).yes_or_no; }

/// The features that an output stands for: those of bce are logits of them.
at::Tensor values_of(const at::Tensor& output, bool probabilities) {
  return probabilities ? at::sigmoid(output) : output.clone();
}

std::unique_ptr<Segment> loss_of(const Job& job, const Border& output, const Border& kl,
                                 const std::vector<Border>& data) {
  const Border values{"values", output.dims};
  if (by_hand(job))
    return make_reconstruction(output, values, is_bce(job),
                               Compared{element_loss(job.loss), job.loss, data[0], data[1], kl});
  AutogradSegment::Spec spec;
  spec.name = "loss";
  spec.inputs = {output, data[0], data[1], kl};
  spec.outputs = {values, {"loss", {2}, at::kDouble}};

  // The count is that of the reconstruction; the divergence is added to the sum alone. Rows of
  // padding count in neither.
  spec.function = [weight = job.loss.kl, inner = reconstruction_loss(job.loss),
                   probabilities = is_bce(job)](const Pass& pass, Tensors p, Tensors in) {
    const at::Tensor reconstruction = inner(pass, p, in.first(3))[0];
    const at::Tensor valid = in[2].ne(kIgnoredTarget).to(at::kDouble);
    const at::Tensor divergence = (in[3].to(at::kDouble) * valid).sum() * weight;
    return std::vector<at::Tensor>{
        values_of(in[0].detach(), probabilities),
        reconstruction + at::stack({divergence, at::zeros({}, divergence.options())})};
  };
  spec.options.captures = true;
  return std::make_unique<AutogradSegment>(std::move(spec));
}

/// Adds the encoder's layers in reverse and the output, with names that both models share.
void add_decoder(Model& model, const Job& job, Border last, const Border& output,
                 const std::vector<Border>& passed) {
  std::vector<int64_t> widths(job.model.hidden.rbegin(), job.model.hidden.rend());
  add_dense(model, job, "decoder", widths, last, passed);
  model.blocks.push_back(linear_block(job, "output", last, output, passed));
}

}  // namespace

Model make_autoencoder(const Job& job) {
  Model model;
  model.data = data_borders(job);
  const int64_t rows = job.train.micro_batch_size;

  // `last` follows the border that the next block reads.
  Border last = model.data[0];
  add_dense(model, job, "encoder", job.model.hidden, last);
  const Border code{"code", {rows, job.model.latent}}, kl{"kl", {rows}},
      output{"output", model.data[0].dims};
  model.blocks.push_back(code_block(job, last, code, kl));
  add_decoder(model, job, code, output, {kl});
  model.blocks.back().segments.push_back(loss_of(job, output, kl, model.data));
  model.task = Task::kReconstruct;
  model.output = "values";
  return model;
}

Model make_decoder(const Job& job) {
  Model model;
  const int64_t rows = job.train.micro_batch_size;
  model.data = {{"code", {rows, job.model.latent}}, {"targets", {rows}, at::kLong}};
  const Border output{"output", {rows, job.model.inputs}}, values{"values", output.dims};
  add_decoder(model, job, model.data[0], output, {});

  // A model must end with a loss; a decoder alone has none, so its sum and count are zero.
  model.output = "values";
  if (by_hand(job)) {
    model.blocks.back().segments.push_back(
        make_reconstruction(output, values, is_bce(job), std::nullopt));
    return model;
  }
  AutogradSegment::Spec spec;
  spec.name = "values";
  spec.inputs = {output};
  spec.outputs = {values, {"loss", {2}, at::kDouble}};
  spec.function = [probabilities = is_bce(job)](const Pass&, Tensors, Tensors in) {
    return std::vector<at::Tensor>{values_of(in[0], probabilities),
                                   at::zeros({2}, in[0].options().dtype(at::kDouble))};
  };
  spec.options.captures = true;
  model.blocks.back().segments.push_back(std::make_unique<AutogradSegment>(std::move(spec)));
  return model;
}

}  // namespace tutti
