// The segments of one column of the GPT (gpt_columns.h), written like those of the whole one
// (gpt_segments.h), with which they share the cores of attention and the mlp (gpt_core.h).
#pragma once

#include <memory>

#include "model/core/segment.h"
#include "model/gpt/gpt_segments.h"
#include "model/gpt/gpt_shape.h"

namespace tutti {

/// What part of the whole model a column has.
struct GptColumn {
  GptShape whole;
  int64_t columns, number;  ///< how many columns there are, and which one this is

  /// number of its rows of the residual stream, which are [first_row, first_row + rows)
  int64_t rows() const { return whole.rows() / columns; }
  int64_t first_row() const { return number * rows(); }
  int64_t vocab() const { return whole.vocab / columns; }
  int64_t first_token() const { return number * vocab(); }
  /// The sizes of its part of the stream as norms see it: rows that belong to no samples.
  GptShape lines() const;
  /// The dropout of its rows, which draw what they draw in the whole model.
  Dropout dropout(const Pass& pass, GptDropoutSite site) const;

  // Its borders. Those that are gathered or scattered are given as they are put out and as they
  // are read.
  static constexpr int64_t kStatistics = 3;
  Border stream() const;         ///< "x": the stream's rows
  Border passed_stream() const;  ///< "x" as an output that is the input's memory
  Border normed() const;         ///< "normed": its rows, to be gathered
  Border all_normed() const;     ///< the rows of all columns
  Border part() const;           ///< "part": all rows, to be summed and scattered
  Border part_rows() const;      ///< its rows of the sum
  Border logits() const;         ///< for its tokens, all rows
  Border statistics() const;     ///< of its logits, all rows, to be gathered
  Border all_statistics() const;
};

/// tokens -> part: the embeddings of its tokens, zeros elsewhere.
template <class A>
std::unique_ptr<Segment> make_column_embed(const GptColumn& column, const KernelsFor<A>& kernels);
/// part -> x: adds positions (unless they are rotary) and applies dropout.
template <class A>
std::unique_ptr<Segment> make_column_position(const GptColumn& column,
                                              const KernelsFor<A>& kernels);
/// x -> normed, and x again if `passes`.
template <class A>
std::unique_ptr<Segment> make_column_norm(const GptColumn& column, const KernelsFor<A>& kernels,
                                          const std::string& name, GptPlace norm, bool passes);
/// normed, x -> part, x: its heads.
template <class A>
std::unique_ptr<Segment> make_column_attention(const GptColumn& column,
                                               const KernelsFor<A>& kernels,
                                               const RotaryTable& rotary);
/// part, x -> x + dropout(part + bias), and the norm of that for the next segment if there is one.
template <class A>
std::unique_ptr<Segment> make_column_join(const GptColumn& column, const KernelsFor<A>& kernels,
                                          const std::string& name, int bias, GptDropoutSite site,
                                          GptPlace norm);
/// normed, x -> part, x: its hidden units.
template <class A>
std::unique_ptr<Segment> make_column_mlp(const GptColumn& column, const KernelsFor<A>& kernels);
/// normed, targets -> logits, statistics.
template <class A>
std::unique_ptr<Segment> make_column_logits(const GptColumn& column, const KernelsFor<A>& kernels);
/// logits, statistics, targets -> loss, the whole model's and alike in every column. Its gradient
/// goes to the logits; nothing flows back through the statistics.
template <class A>
std::unique_ptr<Segment> make_column_loss(const GptColumn& column, const KernelsFor<A>& kernels);

}  // namespace tutti
