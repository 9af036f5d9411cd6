// Cuts blocks into columns and joins their parts again (Megatron's column-parallel layers, with an
// all-gather of the outputs).
#include "model/core/column_block.h"

#include <cmath>

#include "base/error.h"

namespace tutti {

namespace {

constexpr const char* kParts = "parts";

// Makes one tensor [B, C, ...] of gathered parts [S, B, C / S, ...], or joins them at another dim;
// backward cuts the gradient the same way. It has no parameters, so its weight part is empty.
class Join final : public Segment {
 public:
  Join(Border whole, const Columns& columns, Whole gradient, size_t dim)
      : in_(gathered_parts(whole, columns.count, dim)),
        out_(std::move(whole)),
        dim_(dim),
        column_(columns.column),
        gradient_(gradient) {
    in_.name = kParts;
  }

  std::string name() const override { return "join"; }
  std::vector<Border> inputs() const override { return {in_}; }
  std::vector<Border> outputs() const override { return {out_}; }
  bool splits() const override { return true; }

  void forward(Context&, Tensors in, Tensors out) const override { parts(out[0]).copy_(in[0]); }
  void backward(Context&, Tensors, Tensors, Tensors grad_out, Tensors grad_in) const override {
    if (gradient_ == Whole::kSummed) {
      grad_in[0].copy_(parts(grad_out[0]));
      return;
    }

    // The exchange sums the columns' gradients, and every column has the same one: so each passes
    // on its own part only.
    grad_in[0].zero_();
    grad_in[0].select(0, column_).copy_(parts(grad_out[0]).select(0, column_));
  }
  void backward_input(Context& context, Tensors in, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    backward(context, in, out, grad_out, grad_in);
  }
  void backward_weight(Context&, Tensors, Tensors) const override {}

 private:
  /// A view of the whole with the dims of the gathered parts.
  at::Tensor parts(const at::Tensor& whole) const {
    std::vector<int64_t> dims(in_.dims.begin() + 1, in_.dims.end());
    const auto dim = static_cast<int64_t>(dim_);
    dims.insert(dims.begin() + dim, in_.dims[0]);
    return whole.view(dims).movedim(dim, 0);
  }

  Border in_, out_;
  size_t dim_;
  int64_t column_;
  Whole gradient_;
};

}  // namespace

std::string column_name(const std::string& block, int64_t column) {
  return column == 0 ? block : fmt::format("{}.slice{}", block, column);
}

void keep_deviation(Init& init, const std::vector<int64_t>& whole,
                    const std::vector<int64_t>& part) {
  const bool glorot =
      init.kind == Init::Kind::kGlorotUniform || init.kind == Init::Kind::kGlorotNormal;
  const bool he = init.kind == Init::Kind::kHeUniform || init.kind == Init::Kind::kHeNormal;
  if (!glorot && !he) return;

  // The sums under the square root in init.cc; factors that both sizes have in common cancel.
  const auto fans = [&](const std::vector<int64_t>& dims) {
    return static_cast<double>(glorot ? dims[0] + dims[1] : dims[1]);
  };
  init.scale *= std::sqrt(fans(part) / fans(whole));
}

// Cuts the first dim, which are the outputs: a column has its own rows of the weights.
Block column_block(const Block& whole, const Columns& columns) {
  Block block;
  block.name = column_name(whole.name, columns.column);
  for (Parameter parameter : whole.parameters) {
    const std::vector<int64_t> dims = parameter.dims;
    TUTTI_CHECK(dims[0] % columns.count == 0, "{} rows of {} in {} columns", dims[0],
                parameter.name, columns.count);
    parameter.dims[0] /= columns.count;
    if (dims.size() > 1) keep_deviation(parameter.init, dims, parameter.dims);
    block.parameters.push_back(std::move(parameter));
  }
  return block;
}

void check_cut(const std::string& what, int64_t size, int64_t columns,
               std::vector<std::string>& faults) {
  if (size % columns != 0)
    faults.push_back(
        fmt::format("{} = {} cannot be cut into train.tensor_slices = {}", what, size, columns));
}

Border column_part(const Border& whole, int64_t columns, size_t dim) {
  Border part = whole;
  part.dims[dim] /= columns;
  part.exchange = Exchange::kGather;
  return part;
}

Border gathered_parts(const Border& whole, int64_t columns, size_t dim) {
  Border parts = whole;
  parts.dims[dim] /= columns;
  parts.dims.insert(parts.dims.begin(), columns);
  return parts;
}

at::Tensor joined_parts(const at::Tensor& gathered) {
  return gathered.transpose(0, 1).flatten(1, 2);
}

std::unique_ptr<Segment> join_segment(const Border& whole, const Columns& columns, Whole gradient,
                                      size_t dim) {
  return std::make_unique<Join>(whole, columns, gradient, dim);
}

Border joined_part(const Border& whole, const Columns& columns, size_t dim) {
  Border part = column_part(whole, columns.count, dim);
  part.name = kParts;
  return part;
}

}  // namespace tutti
