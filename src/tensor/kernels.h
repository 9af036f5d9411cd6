// The kernels that training spends its time in: matmul, norms, activations, attention, loss,
// embedding. The model's segments call them through one table per processor. On the CPU they work
// on float32, on one thread, and exist once per instruction set; only MKL's matmuls allocate. On a
// GPU (src/cuda) they work on activations of type A = float, bfloat16 or float16 in the device's
// memory, run on the calling thread's current stream, and take their scratch from ATen's pool.
//
// What all of them promise:
//   - Arrays are row-major and dense, rows x cols as the arguments say. Pointers need only the
//     alignment of their element.
//   - The tail of a row runs the code path of the whole vectors, with a mask: an element's bits do
//     not depend on where its row ends.
//   - Sums run in one fixed order: repeated calls give equal bits. Bits differ between instruction
//     sets.
//   - Results are written whole, never added to. NaN or infinity in gives NaN or infinity out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/code_path.h"
#include "config/enums.h"
#include "tensor/matmul.h"

namespace tutti {

struct StepKeys;
/// A dropout mask that is drawn again wherever it is needed, never stored. Whether element (sample,
/// row, col) is kept depends on a draw that is keyed by these fields and nothing else. Sample s is
/// rows [s * rows_per_sample, ...) of the array and has the number first_sample + s. Kept elements
/// are divided by 1 - rate. An array that holds some rows or columns of a larger one draws what they
/// draw there: its row 0 is the larger one's `first_row`, its column 0 the `first_column` of
/// `all_columns`. Columns of a larger one exist on the CPU alone.
struct Dropout {
  double rate = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t block = 0;        ///< below 2^20
  uint32_t site = 0;         ///< which of the block's masks; below 16
  int64_t first_sample = 0;  ///< below 2^40
  int64_t rows_per_sample = 1;
  /// On a GPU this is the address of the step's keys in its memory. Then `step` is not read, and
  /// first_sample is counted from the step's first one. On the CPU it is null.
  const StepKeys* keys = nullptr;
  int64_t first_row = 0, first_column = 0;
  int64_t all_columns = 0;  ///< 0: as many as the array has
};

/// What changes from step to step in the keys of randomness. A captured step reads it in
/// device memory.
struct StepKeys {
  uint64_t step = 0;
  int64_t first_sample = 0;  ///< of the step, in the job's order
};

/// q, k and v of a causal attention in one array [batch, length, heads + 2 kv_heads, dim], as one
/// matmul leaves them. With fewer heads of keys and values than of queries (grouped-query
/// attention) each serves `group()` consecutive heads of queries, in order.
struct AttentionShape {
  int64_t batch, length, heads, dim;
  int64_t kv_heads = heads;

  int64_t columns() const { return (heads + 2 * kv_heads) * dim; }
  int64_t group() const { return heads / kv_heads; }
  /// The columns, within a row, of the keys and values that query head h uses.
  int64_t key_column(int64_t h) const { return (heads + h / group()) * dim; }
  int64_t value_column(int64_t h) const { return (heads + kv_heads + h / group()) * dim; }
};

/// Rotary positions (RoPE) of x [batch, length, columns]: in each of the first `heads` heads of a
/// row, elements i and i + dim / 2 are turned as a pair by the row's angle i (dim is even). Columns
/// after these heads are left alone.
struct RotaryShape {
  int64_t batch, length, heads, dim, columns;
};

/// What a model in columns uses instead of embed and cross_entropy (a vocabulary-parallel embedding
/// and loss): the vocabulary is cut, and one slice of it has the ids [first, first + count). All
/// pointers are null where a device has none of these kernels.
template <class A>
struct VocabularyKernelsFor {
  /// out[r] = table[tokens[r] - first], or zeros where the token belongs to another slice. table is
  /// [count, cols].
  void (*embed)(const int64_t* tokens, const float* table, float* out, int64_t rows, int64_t cols,
                int64_t first, int64_t count);
  /// dtable, each element summed in the order of the rows.
  void (*embed_backward)(const int64_t* tokens, const A* dout, float* dtable, int64_t rows,
                         int64_t cols, int64_t first, int64_t count);
  /// out[r] = dropout(x[r] + position[(first_row + r) % length]). position may be null, and out may
  /// be x.
  void (*positions)(const A* x, const float* position, A* out, int64_t rows, int64_t first_row,
                    int64_t length, int64_t cols, const Dropout* dropout);
  /// dposition [length, cols] is summed in the order of the rows; it may be null. dx may be dout.
  void (*positions_backward)(const A* dout, A* dx, float* dposition, int64_t rows,
                             int64_t first_row, int64_t length, int64_t cols,
                             const Dropout* dropout);
  /// Three statistics of each row of a slice's logits [rows, count]: the largest logit, the sum of
  /// exp(logit - largest), and the target's logit, or 0 where the target belongs to another slice.
  void (*statistics)(const A* logits, const int64_t* targets, float* statistics, int64_t rows,
                     int64_t first, int64_t count);
  /// The cross_entropy of statistics [slices, rows, 3], joined slice by slice.
  void (*cross_entropy)(const float* statistics, const int64_t* targets, float* lse, double* result,
                        int64_t rows, int64_t slices);
  /// The same as the whole vocabulary's, for this slice of the logits.
  void (*cross_entropy_backward)(const A* logits, const int64_t* targets, const float* lse,
                                 const double* scale, A* dlogits, int64_t rows, int64_t first,
                                 int64_t count);
};

/// A linear layer's products of [rows, in] and [rows, out] by a weight [out, in], fused with the
/// work that surrounds them into one kernel. Pointers are null where a device has no such kernel. A
/// call returns false, and has done nothing, where it has none for these sizes, arrays or this
/// activation: a rule of type, shape and alignment alone. Biases are read as the matmul reads
/// weights, in A; what comes out is rounded once.
template <class A>
struct FusedFor {
  /// y = x weight^T + bias + residual; bias and residual may be null.
  bool (*linear)(const A* x, const A* weight, const A* bias, const A* residual, A* y, int64_t rows,
                 int64_t out, int64_t in);
  /// left = x weight^T + bias, which activation_backward needs; active = f(left).
  bool (*linear_activation)(const A* x, const A* weight, const A* bias, A* left, A* active,
                            int64_t rows, int64_t out, int64_t in, Activation kind);
  /// dleft = (dy weight) f'(left), of [rows, in].
  bool (*linear_activation_backward)(const A* dy, const A* weight, const A* left, A* dleft,
                                     int64_t rows, int64_t out, int64_t in, Activation kind);
};

/// The table. Weights and biases of norms, biases of linear layers, embeddings and all gradients of
/// parameters are float32 for every A: only a matmul reads a weight as A.
template <class A>
struct KernelsFor {
  MatmulFor<A> matmul;
  FusedFor<A> fused;

  // A bias or beta that is null counts as zeros; its gradient may be null and is then not computed.

  /// y = (x - mean) * rstd * gamma + beta; mean and rstd of each row are kept for backward.
  void (*layer_norm)(const A* x, const float* gamma, const float* beta, A* y, float* mean,
                     float* rstd, int64_t rows, int64_t cols, float eps);
  /// dx = residual + the norm's gradient; residual may be null or dx itself, dx may be dy.
  void (*layer_norm_backward)(const A* dy, const A* x, const float* mean, const float* rstd,
                              const float* gamma, const A* residual, A* dx, float* dgamma,
                              float* dbeta, int64_t rows, int64_t cols);
  /// y = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + eps), kept for backward.
  void (*rms_norm)(const A* x, const float* gamma, A* y, float* rstd, int64_t rows, int64_t cols,
                   float eps);
  /// What layer_norm_backward is to layer_norm.
  void (*rms_norm_backward)(const A* dy, const A* x, const float* rstd, const float* gamma,
                            const A* residual, A* dx, float* dgamma, int64_t rows, int64_t cols);

  /// Batch norm, whose statistics are a column's over all rows; null where a device does not have
  /// it. variance is the mean of (x - mean)^2.
  void (*column_moments)(const A* x, float* mean, float* variance, int64_t rows, int64_t cols);
  /// y = (x - mean) * rstd * gamma + beta
  void (*batch_norm)(const A* x, const float* mean, const float* rstd, const float* gamma,
                     const float* beta, A* y, int64_t rows, int64_t cols);
  /// For a mean and rstd that are those of the rows; dx may be dy.
  void (*batch_norm_backward)(const A* dy, const A* x, const float* mean, const float* rstd,
                              const float* gamma, A* dx, float* dgamma, float* dbeta, int64_t rows,
                              int64_t cols);

  /// y += bias
  void (*add_bias)(A* y, const float* bias, int64_t rows, int64_t cols);
  /// out = x + dropout(y + bias); dropout may be null, out may be x or y.
  void (*bias_residual)(const A* y, const float* bias, const A* x, A* out, int64_t rows,
                        int64_t cols, const Dropout* dropout);
  /// out = dy times the mask, sums = its column sums. Without dropout `out` is not written.
  void (*dropout_backward)(const A* dy, A* out, float* sums, int64_t rows, int64_t cols,
                           const Dropout* dropout);
  /// sums[c] = sum over rows of x[., c]
  void (*column_sums)(const A* x, float* sums, int64_t rows, int64_t cols);

  /// g = f(h + bias) for the activation f; leaves in h what activation_backward needs.
  void (*bias_activation)(A* h, const float* bias, A* g, int64_t rows, int64_t cols,
                          Activation kind);
  /// dh = dg * f', dbias = its column sums; `left` is what bias_activation left; dh may be dg.
  void (*activation_backward)(const A* dg, const A* left, A* dh, float* dbias, int64_t rows,
                              int64_t cols, Activation kind);
  /// SwiGLU: a row of h [rows, 2 cols] is (gate, up), and a row of g [rows, cols] is silu(gate) *
  /// up, both after bias [2 cols] is added. Leaves in h what swiglu_backward needs.
  void (*bias_swiglu)(A* h, const float* bias, A* g, int64_t rows, int64_t cols);
  /// `left` is what bias_swiglu left; dh [rows, 2 cols] may be `left`. dbias = the column sums
  /// of dh.
  void (*swiglu_backward)(const A* dg, const A* left, A* dh, float* dbias, int64_t rows,
                          int64_t cols);

  /// Turns the pairs of x + bias [columns] in place. table is made by rotary_table.
  void (*rotary)(A* x, const float* bias, const float* table, const RotaryShape& shape);
  /// Turns gradients back, in place. dbias = the column sums of the result over batch and length.
  void (*rotary_backward)(A* dx, const float* table, float* dbias, const RotaryShape& shape);

  /// First adds bias [columns] to qkv, in place. out is [batch, length, heads, dim]. lse [batch,
  /// heads, length] is kept for backward; on the CPU it is the logarithm to base 2 of each row's
  /// sum of 2^(score log2(e)). work holds attention_work floats.
  void (*attention)(A* qkv, const float* bias, A* out, float* lse, float* work,
                    const AttentionShape& shape);
  /// The gradient of qkv as attention left it, and its sums over batch and length (dbias).
  void (*attention_backward)(const A* dout, const A* qkv, const A* out, const float* lse, A* dqkv,
                             float* dbias, float* work, const AttentionShape& shape);
  /// Floats of scratch that either of the two needs for a shape.
  int64_t (*attention_work)(const AttentionShape& shape);

  /// result[0] = the sum over rows of log(sum exp(logits)) - logits[target], result[1] = the
  /// number of rows with a target. A negative target means that the row has none. lse [rows] is
  /// kept for backward.
  void (*cross_entropy)(const A* logits, const int64_t* targets, float* lse, double* result,
                        int64_t rows, int64_t cols);
  /// The gradient of result[0] times *scale (1 if null), zero in rows without a target. dlogits may
  /// be logits.
  void (*cross_entropy_backward)(const A* logits, const int64_t* targets, const float* lse,
                                 const double* scale, A* dlogits, int64_t rows, int64_t cols);

  /// Both in one pass, with the same bits: the gradient takes the place of the logits. Null where a
  /// device does not have it.
  void (*cross_entropy_in_place)(A* logits, const int64_t* targets, const double* scale,
                                 double* result, int64_t rows, int64_t cols);

  /// out[r] = dropout(token[tokens[r]] + position[r % length]); dropout and position may be null.
  void (*embed)(const int64_t* tokens, const float* token, const float* position, A* out,
                int64_t rows, int64_t length, int64_t cols, const Dropout* dropout);
  /// dtoken is [vocab, cols], dposition [length, cols]. Each element is summed in one fixed order
  /// of the rows.
  void (*embed_backward)(const int64_t* tokens, const A* dout, float* dtoken, float* dposition,
                         int64_t rows, int64_t length, int64_t vocab, int64_t cols,
                         const Dropout* dropout);

  VocabularyKernelsFor<A> vocabulary;
};
using Kernels = KernelsFor<float>;

/// The cosines and sines of rotary positions: row t of [length, dim] is cos(t w_i), then sin(t
/// w_i), for the dim / 2 frequencies w_i = base^(-2 i / dim). They are computed in float64 and
/// rounded once.
std::vector<float> rotary_table(int64_t length, int64_t dim, double base);

/// The table of a code path, which the processor must be able to run, with these matmuls.
const Kernels& kernels(CodePath path, MatmulKind matmul = MatmulKind::kOwn);

}  // namespace tutti
