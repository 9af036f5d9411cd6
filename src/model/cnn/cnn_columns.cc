// The CNN in columns (tensor parallelism that the model defines), from ATen's operations with
// autograd inside each segment. A column has its own output channels of every convolution.
#include <ATen/TensorOperators.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "model/cnn/cnn_reference.h"
#include "model/core/activation.h"
#include "model/core/column_block.h"

namespace tutti {

namespace {

/// Makes a column's blocks. `x` is the whole border that a block puts out.
class Column {
 public:
  Column(const CnnPlan& plan, const Job& job, const Columns& columns)
      : plan_(plan),
        shape_(plan.shape),
        options_(built_in_options(job)),
        columns_(columns),
        each_(shape_.layer_parameters()) {}

  Block stem(const Block& whole, const Border& images, const Border& x) const {
    Block block = column_block(whole, columns_);
    add(block, "stem", 0, each_, {images}, {joined_part(x, columns_)}, plan_.stem.flops(),
        [*this](const Pass& pass, Tensors p, Tensors in) {
          return Results{cnn_pooled(shape_, layer(plan_.stem, pass, p, in[0]))};
        });
    block.segments.push_back(join_segment(x, columns_));
    return block;
  }

  Block plain(const Block& whole, const CnnBlockShape& of, const Border& from,
              const Border& x) const {
    Block block = column_block(whole, columns_);
    add(block, "block", 0, each_, {from}, {joined_part(x, columns_)}, of.layers[0].flops(),
        [*this, of](const Pass& pass, Tensors p, Tensors in) {
          return Results{activate(shape_.activation, layer(of.layers[0], pass, p, in[0]))};
        });
    block.segments.push_back(join_segment(x, columns_));
    return block;
  }

  Block residual(const Block& whole, const CnnBlockShape& of, const Border& from,
                 const Border& x) const {
    Block block = cnn_residual_column(plan_, whole, columns_);

    // The shortcut's part is needed where the second segment runs, in the same column: it crosses
    // no exchange.
    const Border hidden{"hidden", x.dims, at::kFloat};
    Border shortcut = column_part(x, columns_.count);
    shortcut.name = "shortcut";
    shortcut.exchange = Exchange::kNone;
    const size_t count = of.shortcut ? 2 * each_ : each_;
    const double flops = of.layers[0].flops() + (of.shortcut ? of.shortcut->flops() : 0);

    // The first convolution and the shortcut read the same input, so they are one segment; the
    // second one needs all channels of what the first makes, which are gathered before it.
    add(block, "first", 0, count, {from}, {column_part(hidden, columns_.count), shortcut}, flops,
        [*this, of](const Pass& pass, Tensors p, Tensors in) {
          return Results{
              activate(shape_.activation, layer(of.layers[0], pass, p, in[0])),
              of.shortcut ? layer(*of.shortcut, pass, p.subspan(each_), in[0]) : own(in[0])};
        });
    add(block, "second", count, each_, {gathered_parts(hidden, columns_.count), shortcut},
        {joined_part(x, columns_)}, of.layers[1].flops(),
        [*this, of](const Pass& pass, Tensors p, Tensors in) {
          return Results{activate(shape_.activation,
                                  layer(of.layers[1], pass, p, joined_parts(in[0])) + in[1])};
        });
    block.segments.push_back(join_segment(x, columns_));
    return block;
  }

  Block head(const Block& whole, const Border& from, const Border& logits) const {
    Block block = column_block(whole, columns_);
    add(block, "head", 0, block.parameters.size(), {from}, {joined_part(logits, columns_)}, 0,
        [*this](const Pass& pass, Tensors p, Tensors in) {
          // All columns drop features of the same vector, so they need one mask: keyed by the
          // layer, and not by the block, which differs between columns.
          const int layer = pass.block / static_cast<int>(columns_.count);
          return Results{cnn_classified(shape_, pass, layer, p, in[0])};
        });
    block.segments.push_back(join_segment(logits, columns_, Whole::kSame));
    return block;
  }

 private:
  using Results = std::vector<at::Tensor>;

  /// The column's own channels of a whole tensor.
  at::Tensor own(const at::Tensor& x) const {
    const int64_t channels = x.size(1) / columns_.count;
    return x.narrow(1, columns_.column * channels, channels).clone();
  }

  /// A convolution with its norm, of which this column has its part of the groups.
  at::Tensor layer(const ConvShape& whole, const Pass& pass, Tensors p, const at::Tensor& x) const {
    return cnn_layer(shape_, whole, shape_.groups(whole.out) / columns_.count, pass, p, x);
  }

  /// Adds a segment of one layer, so its backward may run in two parts.
  void add(Block& block, const char* name, size_t first, size_t count, std::vector<Border> in,
           std::vector<Border> out, double flops, TensorFunction function) const {
    AdaptOptions options = options_;
    options.splits = true;
    options.flops = flops * static_cast<double>(shape_.batch) / static_cast<double>(columns_.count);
    block.segments.push_back(cnn_segment(std::move(options), name, block, first, count,
                                         std::move(in), std::move(out), std::move(function)));
  }

  CnnPlan plan_;
  CnnShape shape_;
  AdaptOptions options_;
  Columns columns_;
  size_t each_;  // parameters of a convolution with its norm
};

}  // namespace

// Every reason why the network cannot be cut. A group norm whose groups span columns would need
// statistics of channels that a column does not have.
void check_cnn_columns(const CnnPlan& plan, const Job& job) {
  const int64_t columns = job.train.tensor_slices;
  std::vector<std::string> faults;
  for (const int64_t channels : job.model.channels) {
    check_cut("model.channels", channels, columns, faults);
    if (plan.shape.norm == NormKind::kGroup && plan.shape.groups(channels) % columns != 0)
      faults.push_back(
          fmt::format("train.tensor_slices = {} but model.norm = \"{}\" has {} of {} channels, "
                      "which a cut would divide; "
                      "use batch or none",
                      columns, job.model.norm,
                      plan.shape.groups(channels) == 1 ? "one group" : "groups", channels));
  }
  check_cut("model.classes", plan.shape.classes, columns, faults);
  if (!faults.empty()) throw Error(fmt::format("{}", fmt::join(faults, "\n")));
}

void add_cnn_columns(const CnnPlan& plan, const Job& job, Model& model) {
  const std::vector<Block> whole = cnn_blocks(plan, job.model);
  const int64_t columns = job.train.tensor_slices;
  model.columns = static_cast<int>(columns);
  const auto add_layer = [&](auto make) {
    for (int64_t column = 0; column < columns; ++column)
      model.blocks.push_back(make(Column(plan, job, {columns, column})));
  };

  // Layer by layer, and in a layer column by column, as Model wants them. `x` is what flows between
  // blocks; every block ends with all channels of it.
  Border x{"x",
           {plan.shape.batch, plan.stem.out, plan.stem.height / 2, plan.stem.width / 2},
           at::kFloat};
  add_layer([&](const Column& column) { return column.stem(whole.front(), model.data[0], x); });
  for (size_t i = 0; i < plan.blocks.size(); ++i) {
    const CnnBlockShape& of = plan.blocks[i];
    const Border out{"x", {plan.shape.batch, of.channels(), of.height(), of.width()}, at::kFloat};
    add_layer([&](const Column& column) {
      return plan.shape.residual ? column.residual(whole[i + 1], of, x, out)
                                 : column.plain(whole[i + 1], of, x, out);
    });
    x = out;
  }
  const Border logits{"logits", {plan.shape.batch, plan.shape.classes}, at::kFloat};
  add_layer([&](const Column& column) { return column.head(whole.back(), x, logits); });
}

}  // namespace tutti
