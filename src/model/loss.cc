#include "model/loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/stack.h>

#include "base/error.h"
#include "model/adaptor.h"
#include "model/wiring.h"

namespace tutti {

namespace {

std::vector<at::Tensor> cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor rows = logits.reshape({-1, logits.size(-1)});
  const at::Tensor flat = targets.reshape({-1});
  const at::Tensor losses = at::nll_loss(at::log_softmax(rows, -1), flat, {}, at::Reduction::None, kIgnoredTarget);
  return {at::stack({losses.to(at::kDouble).sum(), flat.ne(kIgnoredTarget).sum().to(at::kDouble)})};
}

}  // namespace

std::unique_ptr<Segment> cross_entropy_segment(Border logits, Border targets) {
  if (logits.dims.empty() || targets.type != at::kLong ||
      targets.dims != std::vector<int64_t>(logits.dims.begin(), logits.dims.end() - 1))
    throw Error(fmt::format("cross-entropy of {} needs int64 targets of its leading dims, not {}", to_string(logits),
                            to_string(targets)));
  AutogradSegment::Spec spec;
  spec.name = "cross_entropy";
  spec.inputs = {std::move(logits), std::move(targets)};
  spec.outputs = {{"loss", {2}, at::kDouble}};
  spec.function = [](const Pass&, Tensors, Tensors in) { return cross_entropy(in[0], in[1]); };
  return std::make_unique<AutogradSegment>(std::move(spec));
}

Block cross_entropy_block(std::string name, Border logits, Border targets) {
  Block block;
  block.name = std::move(name);
  block.segments.push_back(cross_entropy_segment(std::move(logits), std::move(targets)));
  return block;
}

}  // namespace tutti
