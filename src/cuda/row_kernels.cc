// Entries of the table as functions without state: each finds the current stream when it is called.
// CurrentQueue gives its scratch back at the end of the call, while the kernels may still be
// waiting: the pool hands it only to work that comes after them on the same stream.
#include "cuda/row_kernels.h"

#include "cuda/current_queue.h"

namespace tutti {

namespace {

/// Layer norm and RMS norm.
template <class A>
void fill_norms(KernelsFor<A>& table) {
  table.layer_norm = [](const A* x, const float* gamma, const float* beta, A* y, float* mean,
                        float* rstd, int64_t rows, int64_t cols, float eps) {
    CurrentQueue queue;
    rows::layer_norm(queue, stored(x), gamma, beta, stored(y), mean, rstd, rows, cols, eps);
  };

  table.layer_norm_backward = [](const A* dy, const A* x, const float* mean, const float* rstd,
                                 const float* gamma, const A* residual, A* dx, float* dgamma,
                                 float* dbeta, int64_t rows, int64_t cols) {
    CurrentQueue queue;
    rows::layer_norm_backward(queue, stored(dy), stored(x), mean, rstd, gamma, stored(residual),
                              stored(dx), dgamma, dbeta, rows, cols);
  };

  table.rms_norm = [](const A* x, const float* gamma, A* y, float* rstd, int64_t rows, int64_t cols,
                      float eps) {
    CurrentQueue queue;
    rows::rms_norm(queue, stored(x), gamma, stored(y), rstd, rows, cols, eps);
  };

  table.rms_norm_backward = [](const A* dy, const A* x, const float* rstd, const float* gamma,
                               const A* residual, A* dx, float* dgamma, int64_t rows,
                               int64_t cols) {
    CurrentQueue queue;
    rows::rms_norm_backward(queue, stored(dy), stored(x), rstd, gamma, stored(residual), stored(dx),
                            dgamma, rows, cols);
  };
}

/// Biases and their gradients, with dropout and residual where these are fused.
template <class A>
void fill_biases(KernelsFor<A>& table) {
  table.add_bias = [](A* y, const float* bias, int64_t rows, int64_t cols) {
    CurrentQueue queue;
    rows::add_bias(queue, stored(y), bias, rows, cols);
  };
  table.column_sums = [](const A* x, float* sums, int64_t rows, int64_t cols) {
    CurrentQueue queue;
    rows::column_sums(queue, stored(x), sums, rows, cols);
  };

  table.bias_residual = [](const A* y, const float* bias, const A* x, A* out, int64_t rows,
                           int64_t cols, const Dropout* dropout) {
    CurrentQueue queue;
    rows::bias_residual(queue, stored(y), bias, stored(x), stored(out), rows, cols, dropout);
  };

  table.dropout_backward = [](const A* dy, A* out, float* sums, int64_t rows, int64_t cols,
                              const Dropout* dropout) {
    CurrentQueue queue;
    rows::dropout_backward(queue, stored(dy), stored(out), sums, rows, cols, dropout);
  };
}

/// Activations and SwiGLU with their biases.
template <class A>
void fill_activations(KernelsFor<A>& table) {
  table.bias_activation = [](A* h, const float* bias, A* g, int64_t rows, int64_t cols,
                             Activation kind) {
    CurrentQueue queue;
    rows::bias_activation(queue, stored(h), bias, stored(g), rows, cols, kind);
  };

  table.activation_backward = [](const A* dg, const A* left, A* dh, float* dbias, int64_t rows,
                                 int64_t cols, Activation kind) {
    CurrentQueue queue;
    rows::activation_backward(queue, stored(dg), stored(left), stored(dh), dbias, rows, cols, kind);
  };

  table.bias_swiglu = [](A* h, const float* bias, A* g, int64_t rows, int64_t cols) {
    CurrentQueue queue;
    rows::bias_swiglu(queue, stored(h), bias, stored(g), rows, cols);
  };

  table.swiglu_backward = [](const A* dg, const A* left, A* dh, float* dbias, int64_t rows,
                             int64_t cols) {
    CurrentQueue queue;
    rows::swiglu_backward(queue, stored(dg), stored(left), stored(dh), dbias, rows, cols);
  };
}

/// What places tokens: embedding and rotary positions.
template <class A>
void fill_embeddings(KernelsFor<A>& table) {
  table.rotary = [](A* x, const float* bias, const float* angles, const RotaryShape& shape) {
    CurrentQueue queue;
    rows::rotary(queue, stored(x), bias, angles, shape);
  };

  table.rotary_backward = [](A* dx, const float* angles, float* dbias, const RotaryShape& shape) {
    CurrentQueue queue;
    rows::rotary_backward(queue, stored(dx), angles, dbias, shape);
  };

  table.embed = [](const int64_t* tokens, const float* token, const float* position, A* out,
                   int64_t rows, int64_t length, int64_t cols, const Dropout* dropout) {
    CurrentQueue queue;
    rows::embed(queue, tokens, token, position, stored(out), rows, length, cols, dropout);
  };

  table.embed_backward = [](const int64_t* tokens, const A* dout, float* dtoken, float* dposition,
                            int64_t rows, int64_t length, int64_t vocab, int64_t cols,
                            const Dropout* dropout) {
    CurrentQueue queue;
    rows::embed_backward(queue, tokens, stored(dout), dtoken, dposition, rows, length, vocab, cols,
                         dropout);
  };
}

}  // namespace

template <class A>
void fill_rows(KernelsFor<A>& table) {
  fill_norms(table);
  fill_biases(table);
  fill_activations(table);
  fill_embeddings(table);
}

template void fill_rows(KernelsFor<float>&);
template void fill_rows(KernelsFor<c10::BFloat16>&);
template void fill_rows(KernelsFor<c10::Half>&);

}  // namespace tutti
