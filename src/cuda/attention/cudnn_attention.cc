// Keeps one graph per shape, type and direction, built at its first use. cuDNN itself is the
// library that LibTorch loaded, found at run time: nothing links against it, so its absence is an
// Error and not a command that cannot start.
#include "cuda/attention/cudnn_attention.h"

#include <ATen/cuda/EmptyTensor.h>
#include <ATen/cudnn/Handle.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/env.h>
#include <dlfcn.h>

#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>

#include "base/error.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend declares it and looks up cuDNN's functions in it
}

namespace tutti {

namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// The first version with the deterministic backward pass of every architecture that we compile for.
constexpr size_t kOldest = 91800;

/// The numbers by which a graph's arrays are named.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kStats, kDout, kDq, kDk, kDv };

/// The key of a graph: what its kernels depend on.
struct Key {
  at::ScalarType type;
  bool backward;
  AttentionShape shape;

  bool operator<(const Key& other) const { return fields() < other.fields(); }
  std::tuple<int, bool, int64_t, int64_t, int64_t, int64_t, int64_t> fields() const {
    return {static_cast<int>(type), backward, shape.batch, shape.length, shape.heads, shape.dim,
            shape.kv_heads};
  }
};

struct Plan {
  fe::graph::Graph graph;
  int64_t workspace = 0;
};

std::string name(const Key& key) {
  const AttentionShape& s = key.shape;
  return fmt::format("attention {} of {}, batch {}, length {}, heads {}, kv_heads {}, dim {}",
                     key.backward ? "backward" : "forward", c10::toString(key.type), s.batch,
                     s.length, s.heads, s.kv_heads, s.dim);
}

/// Version 91900 is "9.19.0".
std::string readable(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void check(fe::error_t status, const char* what, const Key& key) {
  if (status.is_good()) return;
  throw Error(fmt::format("cuDNN {} failed to {} {}: {}",
                          readable(fe::detail::get_backend_version()), what, name(key),
                          status.get_message()));
}

/// Opens cuDNN, or says why there is none to use.
void open_cudnn() {
  // Where another CUDA runtime than LibTorch's is installed, the frontend would take that one.
  c10::utils::set_env("CUDNN_FRONTEND_CUDART_LIB_NAME", "libcudart.so.13", false);

  fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (!fe::cudnn_dlhandle)
    throw Error(
        fmt::format("16-bit attention needs cuDNN 9, which cannot be opened: {}", dlerror()));
  const size_t version = fe::detail::get_backend_version();
  if (version < kOldest) {
    throw Error(
        fmt::format("16-bit attention needs cuDNN {} or newer, this host has {} (pip install "
                    "nvidia-cudnn-cu13)",
                    readable(kOldest), readable(version)));
  }
}

/// `heads` heads of dim elements out of rows of `columns`, as a tensor [batch, heads, length, dim].
/// cuDNN reads our packed array by these strides, so nothing is copied.
fe::graph::Tensor_attributes packed(const char* label, Uid uid, const AttentionShape& s,
                                    int64_t heads, int64_t columns) {
  return fe::graph::Tensor_attributes()
      .set_name(label)
      .set_uid(uid)
      .set_dim({s.batch, heads, s.length, s.dim})
      .set_stride({s.length * columns, s.dim, columns, 1});
}

/// lse: one float32 per head and query.
fe::graph::Tensor_attributes statistics(const AttentionShape& s) {
  return fe::graph::Tensor_attributes()
      .set_name("stats")
      .set_uid(kStats)
      .set_dim({s.batch, s.heads, s.length, 1})
      .set_stride({s.heads * s.length, s.length, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

/// Gives a result of the graph its place and shape.
void make_output(const Tensor& tensor, const fe::graph::Tensor_attributes& as) {
  tensor->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
  if (as.get_data_type() != fe::DataType_t::NOT_SET) tensor->set_data_type(as.get_data_type());
}

/// Describes the graph, and lets cuDNN choose and compile its kernels.
std::unique_ptr<Plan> build(const Key& key, cudnnHandle_t handle) {
  const AttentionShape& s = key.shape;
  const int64_t columns = s.columns(), width = s.heads * s.dim;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.dim)));
  auto plan = std::make_unique<Plan>();

  fe::graph::Graph& graph = plan->graph;
  graph.set_io_data_type(key.type == at::kHalf ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);

  const Tensor q = graph.tensor(packed("q", kQ, s, s.heads, columns));
  const Tensor k = graph.tensor(packed("k", kK, s, s.kv_heads, columns));
  const Tensor v = graph.tensor(packed("v", kV, s, s.kv_heads, columns));
  const auto out_like = packed("out", kOut, s, s.heads, width);

  // A right bound of 0 from the diagonal is the causal mask.
  if (!key.backward) {
    // Forward keeps the statistics (lse) that backward computes the probabilities from.
    const auto [out, stats] =
        graph.sdpa(q, k, v,
                   fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_attn_scale(scale)
                       .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                       .set_diagonal_band_right_bound(0));
    make_output(out, out_like);
    make_output(stats, statistics(s));
  } else {
    // Without the deterministic algorithm dq would be added by atomics, in any order.
    const Tensor out = graph.tensor(out_like), stats = graph.tensor(statistics(s));
    const Tensor dout = graph.tensor(packed("dout", kDout, s, s.heads, width));
    const auto [dq, dk, dv] =
        graph.sdpa_backward(q, k, v, out, dout, stats,
                            fe::graph::SDPA_backward_attributes()
                                .set_name("attention_backward")
                                .set_attn_scale(scale)
                                .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                .set_diagonal_band_right_bound(0)
                                .set_deterministic_algorithm(true));

    make_output(dq, packed("dq", kDq, s, s.heads, columns));
    make_output(dk, packed("dk", kDk, s, s.kv_heads, columns));
    make_output(dv, packed("dv", kDv, s, s.kv_heads, columns));
  }

  // The first choice of the heuristic: a function of the graph, the GPU and cuDNN's version.
  check(graph.build(handle, {fe::HeurMode_t::A}), "build", key);
  check(graph.get_workspace_size(plan->workspace), "size the workspace of", key);
  return plan;
}

class Plans {
 public:
  Plans() { open_cudnn(); }

  void execute(const Key& key, std::unordered_map<int64_t, void*> arrays) {
    const std::lock_guard lock(mutex_);
    const cudnnHandle_t handle = at::native::getCudnnHandle();  // on the thread's current stream
    std::unique_ptr<Plan>& plan = plans_[key];
    if (!plan) plan = build(key, handle);

    const at::Device device(at::kCUDA, c10::cuda::current_device());
    // at::empty would not do: it may fill its memory where algorithms are to be deterministic.
    const at::TensorBase workspace =
        at::detail::empty_cuda({plan->workspace}, at::kByte, device, std::nullopt);
    check(plan->graph.execute(handle, arrays, workspace.mutable_data_ptr()), "run", key);
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

/// The process's plans, for its one device. Never destroyed: at exit cuDNN may be gone before them.
Plans& plans() {
  static Plans& all = *new Plans;
  return all;
}

/// Where q, k and v begin in a packed array.
struct Parts {
  void *q, *k, *v;
};
Parts parts(void* qkv, const AttentionShape& s) {
  constexpr int64_t element = 2;
  std::byte* const bytes = static_cast<std::byte*>(qkv);
  return {bytes, bytes + s.key_column(0) * element, bytes + s.value_column(0) * element};
}

}  // namespace

bool cudnn_attends(at::ScalarType type, const AttentionShape& shape) {
  return (type == at::kBFloat16 || type == at::kHalf) && shape.dim % 8 == 0 && shape.dim <= 128 &&
         shape.length >= 64;
}

void cudnn_attention(at::ScalarType type, const void* qkv, void* out, float* lse,
                     const AttentionShape& shape) {
  const Parts in = parts(const_cast<void*>(qkv), shape);
  plans().execute({type, false, shape},
                  {{kQ, in.q}, {kK, in.k}, {kV, in.v}, {kOut, out}, {kStats, lse}});
}

void cudnn_attention_backward(at::ScalarType type, const void* dout, const void* qkv,
                              const void* out, const float* lse, void* dqkv,
                              const AttentionShape& shape) {
  const Parts in = parts(const_cast<void*>(qkv), shape);
  const Parts gradient = parts(dqkv, shape);
  plans().execute({type, true, shape}, {{kQ, in.q},
                                        {kK, in.k},
                                        {kV, in.v},
                                        {kOut, const_cast<void*>(out)},
                                        {kStats, const_cast<float*>(lse)},
                                        {kDout, const_cast<void*>(dout)},
                                        {kDq, gradient.q},
                                        {kDk, gradient.k},
                                        {kDv, gradient.v}});
}

}  // namespace tutti
