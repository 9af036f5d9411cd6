// The segments of one column of the sliced GPT (gpt_slices.h), written like the whole one's
// (gpt_segments.h), with which they share the cores of attention and the mlp (gpt_core.h).
#pragma once

#include <memory>

#include "model/core/segment.h"
#include "model/gpt/gpt_segments.h"
#include "model/gpt/gpt_shape.h"

namespace tutti {

/// What a column has of the whole model.
struct GptSlice {
  GptShape whole;
  int64_t slices, column;

  /// of the residual stream: it has rows [first_row, ...)
  int64_t rows() const { return whole.rows() / slices; }
  int64_t first_row() const { return column * rows(); }
  int64_t vocab() const { return whole.vocab / slices; }
  int64_t first_token() const { return column * vocab(); }
  /// The stream as the norms see it: its rows have no samples.
  GptShape lines() const;
  /// Of its rows: they draw what they draw in the whole model.
  Dropout dropout(const Pass& pass, GptDropoutSite site) const;

  static constexpr int64_t kStatistics = 3;
  Border stream() const;         ///< "x": its rows
  Border passed_stream() const;  ///< as an output that is the input "x"
  Border normed() const;         ///< "normed": its rows
  Border all_normed() const;     ///< of all columns
  Border part() const;           ///< "part": all rows, to be summed
  Border part_rows() const;      ///< its rows of the sum
  Border logits() const;         ///< of its tokens, all rows
  Border statistics() const;     ///< of these, all rows
  Border all_statistics() const;
};

/// tokens -> part: the rows of its tokens, zeros elsewhere.
template <class A>
std::unique_ptr<Segment> make_slice_embed(const GptSlice& slice, const KernelsFor<A>& kernels);
/// part -> x: adds positions (unless they are rotary) and drops.
template <class A>
std::unique_ptr<Segment> make_slice_position(const GptSlice& slice, const KernelsFor<A>& kernels);
/// x -> normed, and x again if `passes`.
template <class A>
std::unique_ptr<Segment> make_slice_norm(const GptSlice& slice, const KernelsFor<A>& kernels,
                                         const std::string& name, GptPlace norm, bool passes);
/// normed, x -> part, x: its heads.
template <class A>
std::unique_ptr<Segment> make_slice_attention(const GptSlice& slice, const KernelsFor<A>& kernels,
                                              const RotaryTable& rotary);
/// part, x -> x + dropout(part + bias), and its norm in front if there is one.
template <class A>
std::unique_ptr<Segment> make_slice_join(const GptSlice& slice, const KernelsFor<A>& kernels,
                                         const std::string& name, int bias, GptDropoutSite site,
                                         GptPlace norm);
/// normed, x -> part, x: its hidden units.
template <class A>
std::unique_ptr<Segment> make_slice_mlp(const GptSlice& slice, const KernelsFor<A>& kernels);
/// normed, targets -> logits, statistics.
template <class A>
std::unique_ptr<Segment> make_slice_logits(const GptSlice& slice, const KernelsFor<A>& kernels);
/// logits, statistics, targets -> loss: the whole model's, alike in every column. Its gradient goes
/// to the logits; nothing flows back through the statistics.
template <class A>
std::unique_ptr<Segment> make_slice_loss(const GptSlice& slice, const KernelsFor<A>& kernels);

}  // namespace tutti
