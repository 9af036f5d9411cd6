// The group of ranks by NCCL. Communicators are non-blocking: every call returns at once, and its
// end is polled for with a deadline. What can still block inside NCCL (tearing down) runs on a
// thread of its own that is left behind when it takes too long.
#include "cuda/nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/function_ref.h"
#include "cuda/errors.h"

namespace tutti {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 18, 0);
// The longest wait for an operation, also when the group has no deadline.
constexpr Duration kLongest = std::chrono::minutes(10);
constexpr Duration kTeardown = std::chrono::seconds(10);  // for finalize, destroy and abort each
constexpr Duration kFirstPause = std::chrono::microseconds(5),
                   kLastPause = std::chrono::milliseconds(1);

std::string version_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

/// NCCL's functions, found at run time.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclAllReduce) all_reduce;

  std::string describe(ncclResult_t result) const {
    const char* last = last_error(nullptr);
    std::string text = error_string(result);
    if (last != nullptr && last[0] != '\0') text += fmt::format(" ({})", last);
    return text;
  }
  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess) throw Error(fmt::format("{}: {}", call, describe(result)));
  }
};

template <typename F>
void find(void* library, const char* name, F& to) {
  to = reinterpret_cast<F>(::dlsym(library, name));
  if (to == nullptr)
    throw Error(fmt::format("libnccl.so.2 has no {}: NCCL 2.18 or newer is needed", name));
}

Nccl load() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw Error(fmt::format(
        "ranks on GPUs need NCCL, and it cannot be opened: {}; it comes with torch (the package "
        "nvidia-nccl-cu13)",
        why == nullptr ? "libnccl.so.2" : why));
  }

  // The version comes first: an older library lacks functions, and its message would only name one.
  Nccl nccl{};
  find(library, "ncclGetVersion", nccl.get_version);
  int version = 0;
  if (nccl.get_version(&version) != ncclSuccess || version < kOldest) {
    throw Error(fmt::format("NCCL {} is too old: {} or newer is needed", version_text(version),
                            version_text(kOldest)));
  }

  // Every function is looked up now, so that a library that lacks one is refused before the first
  // step.
  find(library, "ncclGetUniqueId", nccl.get_unique_id);
  find(library, "ncclCommInitRankConfig", nccl.init);
  find(library, "ncclCommFinalize", nccl.finalize);
  find(library, "ncclCommDestroy", nccl.destroy);
  find(library, "ncclCommAbort", nccl.abort);
  find(library, "ncclCommGetAsyncError", nccl.async_error);
  find(library, "ncclGetErrorString", nccl.error_string);
  find(library, "ncclGetLastError", nccl.last_error);
  find(library, "ncclGroupStart", nccl.group_start);
  find(library, "ncclGroupEnd", nccl.group_end);
  find(library, "ncclSend", nccl.send);
  find(library, "ncclRecv", nccl.receive);
  find(library, "ncclAllReduce", nccl.all_reduce);
  return nccl;
}

const Nccl& library() {
  static const Nccl nccl = load();
  return nccl;
}

bool going(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

/// NCCL refuses two ranks on one device unless they look like ranks of several hosts. NCCL reads
/// the variable when the process makes its first communicator.
void pretend_hosts(const GroupOptions& options) {
  ::setenv("NCCL_HOSTID", fmt::format("tutti-{}-{}", options.host, options.rank).c_str(), 0);
}

/// Between such ranks NCCL may use nothing but this host's loopback interface.
void stay_on_this_host() {
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ::setenv("NCCL_IB_DISABLE", "1", 0);
}

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(Device& device, const GroupOptions& options, Clock& clock, Deadline deadline,
            const Cancel* cancel)
      : nccl_(library()),
        device_(device.info().ordinal),
        rank_(options.rank),
        size_(options.size),
        clock_(clock),
        cancel_(cancel),
        patience_(std::clamp<Duration>(
            deadline.at == Time::max() ? kLongest : deadline.at - clock.awake(), kTeardown,
            kLongest)) {
    ncclUniqueId id;
    if (options.id.size() != sizeof(id.internal)) {
      throw Error(fmt::format("an NCCL group's id has {} bytes, not {}", sizeof(id.internal),
                              options.id.size()));
    }
    std::memcpy(id.internal, options.id.data(), sizeof(id.internal));

    // A communicator belongs to the current device. A limit on blocks leaves multiprocessors
    // to compute.
    TUTTI_CUDA_CALL(cudaSetDevice, device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (options.blocks > 0) config.minCTAs = 1, config.maxCTAs = options.blocks;

    // The destructor does not run when the constructor throws, so what NCCL has begun ends here.
    const Time begin = clock_.now();
    try {
      const ncclResult_t result = nccl_.init(&comm_, size_, id, rank_, &config);
      if (!going(result)) fail("nccl init", begin, nccl_.describe(result));
      settle("nccl init", begin, deadline);
    } catch (...) {
      end(/*healthy=*/false);
      throw;
    }
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() override { end(!failed_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void exchange(Stream stream, std::span<const DeviceSend> sends,
                std::span<const DeviceReceive> receives) override {
    put("nccl exchange", [&] {
      // A group of messages starts as one, so no order of sends and receives can block.
      const ncclResult_t started = nccl_.group_start();
      if (started != ncclSuccess) return started;

      ncclResult_t worst = ncclSuccess;
      const auto note = [&](ncclResult_t result) {
        if (going(worst) && !going(result)) worst = result;
      };

      // Empty messages are left out on both sides.
      for (const DeviceSend& s : sends) {
        if (s.bytes > 0 && going(worst))
          note(nccl_.send(s.from, s.bytes, ncclUint8, s.peer, comm_, of(stream)));
      }
      for (const DeviceReceive& r : receives) {
        if (r.bytes > 0 && going(worst))
          note(nccl_.receive(r.to, r.bytes, ncclUint8, r.peer, comm_, of(stream)));
      }
      note(nccl_.group_end());  // also after a fault: every start needs its end
      return worst;
    });
  }

  void sum(Stream stream, double* values, int64_t n) override {
    sum_all(stream, values, n, ncclFloat64);
  }
  void sum(Stream stream, float* values, int64_t n) override {
    sum_all(stream, values, n, ncclFloat32);
  }

  std::string fault() override {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return "aborted";

    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_.async_error(comm_, &state);
    if (going(asked) && going(state)) return "";
    failed_ = true;
    return fmt::format("NCCL: {}", nccl_.describe(going(asked) ? state : asked));
  }

  void abort() override { end(/*healthy=*/false); }

 private:
  static cudaStream_t of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

  void sum_all(Stream stream, void* values, int64_t n, ncclDataType_t type) {
    if (n == 0) return;
    put("nccl sum",
        [&] { return nccl_.all_reduce(values, values, n, type, ncclSum, comm_, of(stream)); });
  }

  /// Hands an operation to NCCL and waits until it is on the stream. Another thread may abort in
  /// the meantime, so the lock is held for the call and not for the wait.
  void put(const char* operation, FunctionRef<ncclResult_t()> call) {
    const Time begin = clock_.now();
    ncclResult_t result = ncclSuccess;
    {
      std::lock_guard lock(mutex_);
      if (comm_ == nullptr || failed_)
        fail(operation, begin, comm_ == nullptr ? "aborted" : "the group has failed");
      result = call();
    }
    if (!going(result)) fail(operation, begin, nccl_.describe(result));
    settle(operation, begin, clock_.after(patience_));
  }

  /// Waits until NCCL has done what was last asked of it. Throws CommError on a fault, at the
  /// deadline, or when cancelled.
  void settle(const char* operation, Time begin, Deadline deadline) {
    for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLastPause)) {
      {
        std::lock_guard lock(mutex_);
        // Under the lock: abort() takes the communicator away.
        if (comm_ == nullptr) fail(operation, begin, "aborted");
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = nccl_.async_error(comm_, &state);
        if (!going(asked)) state = asked;
        if (state == ncclSuccess) return;
        if (state != ncclInProgress) fail(operation, begin, nccl_.describe(state));
      }
      if (clock_.passed(deadline)) fail(operation, begin, "timed out");
      if (clock_.sleep(pause, cancel_) == WaitResult::kCancelled) {
        fail(operation, begin, fmt::format("cancelled: {}", cancel_->reason()));
      }
    }
  }

  [[noreturn]] void fail(const char* operation, Time begin, std::string reason) {
    failed_ = true;
    throw CommError({.rank = rank_,
                     .operation = operation,
                     .waited = clock_.now() - begin,
                     .reason = std::move(reason)});
  }

  /// Takes the communicator down; the first call wins. A healthy communicator waits for its peers
  /// to do the same; any other is aborted, which does not.
  void end(bool healthy) {
    ncclComm_t comm = nullptr;
    {
      std::lock_guard lock(mutex_);
      comm = std::exchange(comm_, nullptr);
    }
    if (comm == nullptr) return;
    if (healthy && finalized(comm)) {
      run_aside(nccl_.destroy, comm);
    } else {
      run_aside(nccl_.abort, comm);
    }
  }

  /// Whether all ranks have finished with the communicator, within kTeardown.
  bool finalized(ncclComm_t comm) {
    const Deadline deadline = clock_.after(kTeardown);
    ncclResult_t state = nccl_.finalize(comm);
    while (state == ncclInProgress && !clock_.passed(deadline)) {
      clock_.sleep(kLastPause, nullptr);
      if (nccl_.async_error(comm, &state) != ncclSuccess) return false;
    }
    return state == ncclSuccess;
  }

  /// Runs a call that may block on a thread of its own, and leaves the thread behind
  /// after kTeardown.
  void run_aside(ncclResult_t (*call)(ncclComm_t), ncclComm_t comm) {
    auto done = std::make_shared<std::atomic<bool>>(false);
    std::thread thread([=, device = device_] {
      // Its result does not matter: nothing of the group is used again.
      if (cudaSetDevice(device) == cudaSuccess) call(comm);
      done->store(true);
    });
    const Deadline deadline = clock_.after(kTeardown);
    while (!done->load() && !clock_.passed(deadline)) clock_.sleep(kLastPause, nullptr);
    done->load() ? thread.join() : thread.detach();
  }

  const Nccl& nccl_;
  const int device_, rank_, size_;
  Clock& clock_;
  const Cancel* cancel_;
  const Duration patience_;
  std::mutex mutex_;  ///< guards comm_ and every call into NCCL with it
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> failed_{false};
};

}  // namespace

std::string nccl_version() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "";
  const auto get_version =
      reinterpret_cast<decltype(&ncclGetVersion)>(::dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != ncclSuccess) return "";
  return version_text(version);
}

std::string nccl_group_id(bool shares) {
  if (shares) stay_on_this_host();
  const Nccl& nccl = library();
  ncclUniqueId id;
  nccl.check(nccl.get_unique_id(&id), "ncclGetUniqueId");
  return {id.internal, sizeof(id.internal)};
}

std::unique_ptr<DeviceGroup> join_nccl(Device& device, const GroupOptions& options, Clock& clock,
                                       Deadline deadline, const Cancel* cancel) {
  if (options.shares) {
    pretend_hosts(options);
    stay_on_this_host();
  }
  return std::make_unique<NcclGroup>(device, options, clock, deadline, cancel);
}

}  // namespace tutti
