// The CNN in columns for the CPU, of the segments by hand. Blocks and parameters are those of
// cnn_columns.cc. A residual block's input passes by its first segment, so that the second one makes
// the shortcut of it.
#include "model/cnn/cnn_segments.h"
#include "model/core/column_block.h"

namespace tutti {

namespace {

constexpr size_t kChannels = 3;  // of [batch, height, width, channels]

ConvShape part_of(ConvShape conv, int64_t columns) {
  conv.out /= columns;
  return conv;
}

/// Makes a column's blocks. `x` is the whole border that a block puts out.
class Column {
 public:
  Column(const CnnPlan& plan, const Columns& columns, const CnnTables& tables)
      : plan_(plan), columns_(columns), tables_(tables) {
    plan_.shape.columns = columns.count;
    plan_.shape.classes /= columns.count;
    plan_.stem = part_of(plan_.stem, columns.count);
  }

  Block stem(const Block& whole, const Border& images, const Border& x) const {
    Block block = column_block(whole, columns_);
    block.segments.push_back(make_cnn_stem(plan_, images, part(x), tables_));
    add_join(block, x);
    return block;
  }

  Block plain(const Block& whole, const CnnBlockShape& of, const Border& from,
              const Border& x) const {
    Block block = column_block(whole, columns_);
    add(block, {.name = "block",
                .conv = cut(of.layers[0]),
                .first = 0,
                .inputs = {from},
                .outputs = {part(x)}});
    add_join(block, x);
    return block;
  }

  Block residual(const Block& whole, const CnnBlockShape& of, const Border& from,
                 const Border& x) const {
    const int each = plan_.shape.layer_parameters();
    Block block = cnn_residual_column(plan_, whole, columns_);
    const Border hidden{"hidden", x.dims, at::kFloat};
    Border passing = from;
    passing.same_as = from.name;
    add(block, {.name = "first",
                .conv = cut(of.layers[0]),
                .first = 0,
                .inputs = {from},
                .outputs = {column_part(hidden, columns_.count, kChannels), passing}});

    CnnColumnLayer second{.name = "second",
                          .conv = cut(of.layers[1]),
                          .first = of.shortcut ? 2 * each : each,
                          .parts = columns_.count,
                          .inputs = {gathered_parts(hidden, columns_.count, kChannels), from},
                          .outputs = {part(x)}};
    if (of.shortcut) {
      second.shortcut = cut(*of.shortcut);
      second.shortcut_first = each;
    } else {
      second.own = columns_.column;
    }
    add(block, second);
    add_join(block, x);
    return block;
  }

  Block head(const Block& whole, const Border& from, const Border& logits) const {
    Block block = column_block(whole, columns_);
    block.segments.push_back(
        make_cnn_head(plan_.shape, from, joined_part(logits, columns_), tables_));
    block.segments.push_back(join_segment(logits, columns_, Whole::kSame));
    return block;
  }

 private:
  ConvShape cut(const ConvShape& conv) const { return part_of(conv, columns_.count); }
  Border part(const Border& whole) const { return joined_part(whole, columns_, kChannels); }
  void add_join(Block& block, const Border& x) const {
    block.segments.push_back(join_segment(x, columns_, Whole::kSummed, kChannels));
  }
  void add(Block& block, const CnnColumnLayer& layer) const {
    block.segments.push_back(make_cnn_column(layer, plan_.shape, tables_.conv));
  }

  CnnPlan plan_;
  Columns columns_;
  CnnTables tables_;
};

}  // namespace

void add_cnn_columns_by_hand(const CnnPlan& plan, const Job& job, const CnnTables& tables,
                             Model& model) {
  const std::vector<Block> whole = cnn_blocks(plan, job.model);
  const int64_t columns = job.train.tensor_slices;
  model.columns = static_cast<int>(columns);
  const auto add_layer = [&](auto make) {
    for (int64_t column = 0; column < columns; ++column)
      model.blocks.push_back(make(Column(plan, {columns, column}, tables)));
  };

  // Layer by layer, and in a layer column by column, as Model wants them.
  add_layer([&](const Column& column) {
    return column.stem(whole.front(), model.data[0], cnn_stream(plan, 0));
  });
  for (size_t i = 0; i < plan.blocks.size(); ++i) {
    const Border from = cnn_stream(plan, i), to = cnn_stream(plan, i + 1);
    add_layer([&](const Column& column) {
      return plan.shape.residual ? column.residual(whole[i + 1], plan.blocks[i], from, to)
                                 : column.plain(whole[i + 1], plan.blocks[i], from, to);
    });
  }
  add_layer([&](const Column& column) {
    return column.head(whole.back(), cnn_stream(plan, plan.blocks.size()), cnn_logits(plan));
  });
}

}  // namespace tutti
