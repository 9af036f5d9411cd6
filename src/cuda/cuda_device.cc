// Devices, streams, events and captured steps by the CUDA runtime. ATen must use the same device,
// streams and memory as we do, so whatever sets one of them here also tells ATen.
#include "cuda/cuda_device.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/bytes.h"
#include "base/error.h"
#include "cuda/cuda_memory.h"
#include "cuda/errors.h"
#include "cuda/nccl.h"
#include "cuda/pool.h"
#include "device/library.h"

namespace tutti {
namespace {

cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t handle(StreamEvent event) { return static_cast<cudaEvent_t>(event.handle); }

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// LibTorch brings these libraries. A build of it without one of them is no reason not to start, so
// their versions are looked up by name and may be empty.
std::string cudnn_version() {
  const auto get = reinterpret_cast<size_t (*)()>(dlsym(RTLD_DEFAULT, "cudnnGetVersion"));
  if (get == nullptr) return {};
  const size_t version = get();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}
std::string cublas_version() {
  const auto get = reinterpret_cast<int (*)(int, int*)>(dlsym(RTLD_DEFAULT, "cublasGetProperty"));
  int part[3] = {};
  for (int i = 0; i < 3; ++i) {
    if (get == nullptr || get(i, &part[i]) != 0) return {};
  }
  return fmt::format("{}.{}.{}", part[0], part[1], part[2]);
}

/// As nvidia-smi writes it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

/// What is known of GPU `ordinal`. It becomes the thread's current device, since only that one can
/// be asked for its free memory.
DeviceInfo describe(int ordinal) {
  DeviceInfo info;
  info.ordinal = ordinal;
  cudaDeviceProp properties{};
  TUTTI_CUDA_CALL(cudaGetDeviceProperties, &properties, ordinal);
  info.name = properties.name;
  info.uuid = uuid_text(properties.uuid);
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;

  TUTTI_CUDA_CALL(cudaSetDevice, ordinal);
  size_t free = 0, total = 0;
  TUTTI_CUDA_CALL(cudaMemGetInfo, &free, &total);
  info.free_bytes = static_cast<int64_t>(free);
  info.total_bytes = static_cast<int64_t>(total);

  // Ranks compare these before their first step: other versions may give other bits.
  TUTTI_CUDA_CALL(cudaDriverGetVersion, &info.driver);
  TUTTI_CUDA_CALL(cudaRuntimeGetVersion, &info.runtime);
  info.cudnn = cudnn_version();
  info.cublas = cublas_version();
  info.nccl = nccl_version();
  return info;
}

void make_aten_deterministic() {
  // cuBLAS reads both variables when it starts, and other values mean other bits. ATen's
  // deterministic mode requires the first.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/1);
  unsetenv("NVIDIA_TF32_OVERRIDE");

  // In this mode ATen would also fill new memory, which costs a pass; our kernels write their
  // results whole.
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
  context.setAllowFP16AccumulationCuBLAS(false);
}

/// What all handles of the process's GPU share.
struct Shared {
  explicit Shared(const DeviceInfo& info) : info(info), memory(info.ordinal), pool(memory) {
    // Before ATen touches the GPU: afterwards neither settings nor allocator could be changed.
    make_aten_deterministic();
    pool.install();
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(info.ordinal));
    at::globalContext().lazyInitDevice(at::kCUDA);
    TUTTI_CUDA_CALL(cudaStreamCreateWithFlags, &zeroing, cudaStreamNonBlocking);
  }
  const DeviceInfo info;
  GpuMemory memory;
  AtenPool pool;
  cudaStream_t zeroing = nullptr;
  std::mutex mutex;
  // Streams of closed handles are used again, since the pool knows its regions by stream.
  std::vector<cudaStream_t> streams;
};

/// The process's one GPU, made by the first open and never destroyed: ATen uses the pool until the
/// process has ended.
Shared& shared(int ordinal) {
  static std::mutex mutex;
  static Shared* one = nullptr;
  // The first open decides the GPU; two threads could open it at once.
  const std::lock_guard lock(mutex);
  if (one == nullptr) {
    const int count = cuda_device_count();
    if (ordinal < 0 || ordinal >= count) {
      throw Error(fmt::format("there is no GPU {}: this host has {}", ordinal, count));
    }
    const DeviceInfo info = describe(ordinal);
    if (const std::string fault = why_unsuited(info); !fault.empty()) throw Error(fault);
    one = new Shared(info);
  }

  if (one->info.ordinal != ordinal) {
    throw Error(fmt::format("this process has opened GPU {}; GPU {} needs a process of its own",
                            one->info.ordinal, ordinal));
  }
  return *one;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(Shared& all) : all_(all), ordinal_(all.info.ordinal) {
    TUTTI_CUDA_CALL(cudaSetDevice, ordinal_);
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(ordinal_));
  }

  // It never waits: a stream on which something is stuck is left behind, not used again.
  ~CudaDevice() override {
    if (abandoned_) return;
    c10::cuda::setCurrentCUDAStream(
        c10::cuda::getDefaultCUDAStream(static_cast<c10::DeviceIndex>(ordinal_)));
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
    const std::lock_guard lock(all_.mutex);
    for (const cudaStream_t stream : streams_) {
      if (cudaStreamQuery(stream) == cudaSuccess) all_.streams.push_back(stream);
    }
    (void)cudaGetLastError();
  }

  const DeviceInfo& info() const override { return all_.info; }
  int64_t free_bytes() const override { return all_.memory.left().free; }

  std::span<std::byte> take(BufferKind kind, size_t bytes) override {
    if (bytes == 0) return {};

    // On a stream of its own, so that zeroing does not wait for what the others are doing.
    void* memory = all_.memory.take(kind_name(kind), bytes);
    TUTTI_CUDA_CALL(cudaMemsetAsync, memory, 0, bytes, all_.zeroing);
    TUTTI_CUDA_CALL(cudaStreamSynchronize, all_.zeroing);
    return {static_cast<std::byte*>(memory), bytes};
  }
  void give_back(std::span<std::byte> memory) override {
    if (!memory.empty() && !abandoned_) all_.memory.give_back(memory.data());
  }

  std::span<std::byte> take_pinned(size_t bytes) override {
    if (bytes == 0) return {};
    TUTTI_CUDA_CALL(cudaSetDevice, ordinal_);
    void* memory = nullptr;

    // Locked memory is often limited, which a user can mend: the message says how.
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw Error(fmt::format(
          "cannot get {} of pinned host memory: the host has no more, or a limit on locked memory "
          "(ulimit -l, the container's) is too low",
          bytes_text(bytes)));
    }
    check_cuda(error, "cudaHostAlloc");
    std::memset(memory, 0, bytes);
    return {static_cast<std::byte*>(memory), bytes};
  }
  void give_back_pinned(std::span<std::byte> memory) override {
    if (!memory.empty() && !abandoned_) (void)cudaFreeHost(memory.data());
  }

  Stream make_stream() override {
    const std::lock_guard lock(all_.mutex);
    cudaStream_t stream = nullptr;
    if (!all_.streams.empty()) {
      stream = all_.streams.back();
      all_.streams.pop_back();
    } else {
      TUTTI_CUDA_CALL(cudaSetDevice, ordinal_);
      TUTTI_CUDA_CALL(cudaStreamCreateWithFlags, &stream, cudaStreamNonBlocking);
    }

    streams_.push_back(stream);
    return {stream};
  }
  void copy(Stream stream, void* to, const void* from, size_t bytes) override {
    if (bytes > 0)
      TUTTI_CUDA_CALL(cudaMemcpyAsync, to, from, bytes, cudaMemcpyDefault, handle(stream));
  }
  void zero(Stream stream, void* memory, size_t bytes) override {
    if (bytes > 0) TUTTI_CUDA_CALL(cudaMemsetAsync, memory, 0, bytes, handle(stream));
  }
  void make_current(Stream stream) override {
    const auto index = static_cast<c10::DeviceIndex>(ordinal_);
    TUTTI_CUDA_CALL(cudaSetDevice, ordinal_);
    c10::cuda::set_device(index);
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(handle(stream), index));
  }

  StreamEvent make_event(bool timed) override {
    TUTTI_CUDA_CALL(cudaSetDevice, ordinal_);
    cudaEvent_t event = nullptr;
    TUTTI_CUDA_CALL(cudaEventCreateWithFlags, &event,
                    timed ? cudaEventDefault : cudaEventDisableTiming);
    const std::lock_guard lock(all_.mutex);
    events_.push_back(event);
    return {event};
  }
  void record(StreamEvent event, Stream stream) override {
    TUTTI_CUDA_CALL(cudaEventRecord, handle(event), handle(stream));
  }
  void wait(Stream stream, StreamEvent event, bool outside) override {
    // While capturing, a plain wait would look for the event's record inside the captured step.
    unsigned flags = cudaEventWaitDefault;
    if (outside) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      TUTTI_CUDA_CALL(cudaStreamIsCapturing, handle(stream), &status);
      if (status != cudaStreamCaptureStatusNone) flags = cudaEventWaitExternal;
    }
    TUTTI_CUDA_CALL(cudaStreamWaitEvent, handle(stream), handle(event), flags);
  }
  bool done(StreamEvent event) const override {
    (void)cudaSetDevice(ordinal_);  // a thread that only waits has set no device
    const cudaError_t error = cudaEventQuery(handle(event));
    if (error == cudaErrorNotReady) {
      // "Not ready" is an answer, not an error that a later call should find.
      (void)cudaGetLastError();
      return false;
    }
    check_cuda(error, "cudaEventQuery");
    return true;
  }
  double seconds(StreamEvent from, StreamEvent to) const override {
    float milliseconds = 0;
    TUTTI_CUDA_CALL(cudaEventElapsedTime, &milliseconds, handle(from), handle(to));
    return static_cast<double>(milliseconds) * 1e-3;
  }
  void synchronise(Stream stream) override {
    TUTTI_CUDA_CALL(cudaStreamSynchronize, handle(stream));
  }

  bool captures() const override { return true; }
  // Relaxed mode: other threads may allocate and query while a step is captured, and so may
  // the pool.
  void begin_capture(Stream stream) override {
    TUTTI_CUDA_CALL(cudaStreamBeginCapture, handle(stream), cudaStreamCaptureModeRelaxed);
  }
  CapturedStep end_capture(Stream stream) override {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(handle(stream), &graph),
               "the step could not be captured: cudaStreamEndCapture");

    // Only the executable form is launched; the graph that it was made of is not needed again.
    cudaGraphExec_t step = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&step, graph, 0);
    (void)cudaGraphDestroy(graph);
    check_cuda(error, "the step could not be captured: cudaGraphInstantiate");
    return {step};
  }
  void launch(const CapturedStep& step, Stream stream) override {
    TUTTI_CUDA_CALL(cudaGraphLaunch, static_cast<cudaGraphExec_t>(step.handle), handle(stream));
  }
  void destroy(CapturedStep step) override {
    if (step.handle != nullptr && !abandoned_)
      (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(step.handle));
  }

  void reserve_pool(int64_t bytes) override { all_.pool.reserve(bytes); }
  PoolUse pool() const override { return all_.pool.use(); }
  void reset_pool_peak() override { all_.pool.reset_peak(); }

  void abandon() override { abandoned_ = true; }

 private:
  Shared& all_;
  const int ordinal_;
  std::atomic<bool> abandoned_{false};
  std::vector<cudaStream_t> streams_;  // both guarded by all_.mutex
  std::vector<cudaEvent_t> events_;
};

}  // namespace

int cuda_device_count() {
  // CUDA reads this when it starts. With more streams than queues of the hardware, streams share
  // a queue: then work that waits for a peer on one stream could hold up what the peer waits for
  // on another.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/1);

  int count = 0, driver = 0, runtime = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0) throw Error("no NVIDIA driver on this host: install one, or train on the CPU");
    throw Error(fmt::format(
        "the NVIDIA driver of this host supports CUDA {}, but {} is needed: update the driver",
        cuda_version(driver), cuda_version(runtime)));
  }

  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    (void)cudaGetLastError();
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    throw Error(visible == nullptr
                    ? std::string("there is an NVIDIA driver on this host, but no GPU")
                    : fmt::format("no GPU is visible: CUDA_VISIBLE_DEVICES is \"{}\"", visible));
  }
  check_cuda(error, "cudaGetDeviceCount");
  return count;
}

std::vector<DeviceInfo> cuda_devices() {
  const int count = cuda_device_count();
  int current = 0;
  TUTTI_CUDA_CALL(cudaGetDevice, &current);
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) devices.push_back(describe(i));
  TUTTI_CUDA_CALL(cudaSetDevice, current);
  return devices;
}

std::unique_ptr<Device> open_cuda(int ordinal) {
  return std::make_unique<CudaDevice>(shared(ordinal));
}

}  // namespace tutti
