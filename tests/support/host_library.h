// A DeviceLibrary of HostDevices: the whole device engine runs with it where there is no GPU, on
// thread ranks.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/processor.h"
#include "device/library.h"
#include "support/host_device.h"
#include "support/host_state_kernels.h"

namespace tutti::testing_support {

/// Messages between threads of this process, by (from, to).
struct ThreadMail {
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> queues;
};

class ThreadGroup final : public DeviceGroup {
 public:
  ThreadGroup(std::shared_ptr<ThreadMail> mail, int rank, int size)
      : mail_(std::move(mail)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void exchange(Stream, std::span<const DeviceSend> sends,
                std::span<const DeviceReceive> receives) override {
    {
      std::lock_guard lock(mail_->mutex);
      for (const DeviceSend& s : sends) {
        const auto* bytes = static_cast<const std::byte*>(s.from);
        mail_->queues[{rank_, s.peer}].emplace_back(bytes, bytes + s.bytes);
      }
    }
    mail_->arrived.notify_all();
    std::unique_lock lock(mail_->mutex);
    for (const DeviceReceive& r : receives) {
      auto& queue = mail_->queues[{r.peer, rank_}];
      const bool came =
          mail_->arrived.wait_for(lock, std::chrono::seconds(20), [&] { return !queue.empty(); });
      if (!came || queue.front().size() != r.bytes) throw Error("a message did not come");
      std::memcpy(r.to, queue.front().data(), r.bytes);
      queue.pop_front();
    }
  }
  void sum(Stream stream, double* values, int64_t n) override { sum_all(stream, values, n); }
  void sum(Stream stream, float* values, int64_t n) override { sum_all(stream, values, n); }
  std::string fault() override { return ""; }
  void abort() override {}

 private:
  template <class T>
  void sum_all(Stream stream, T* values, int64_t n) {
    const size_t bytes = static_cast<size_t>(n) * sizeof(T);
    std::vector<std::vector<T>> all(size_, std::vector<T>(n));
    std::vector<DeviceSend> sends;
    std::vector<DeviceReceive> receives;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      sends.push_back({r, values, bytes});
      receives.push_back({r, all[r].data(), bytes});
    }
    all[rank_].assign(values, values + n);
    exchange(stream, sends, receives);
    for (int64_t i = 0; i < n; ++i) {
      T total = all[0][i];
      for (int r = 1; r < size_; ++r) total += all[r][i];
      values[i] = total;
    }
  }
  std::shared_ptr<ThreadMail> mail_;
  int rank_, size_;
};

inline std::shared_ptr<ThreadMail> thread_mail(const std::string& id) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<ThreadMail>> all;
  std::lock_guard lock(mutex);
  auto& mail = all[id];
  if (!mail) mail = std::make_shared<ThreadMail>();
  return mail;
}

/// Of float32 alone; its one "device" is the host's memory, for every rank its own.
inline const DeviceLibrary& host_library() {
  static const DeviceLibrary library = [] {
    DeviceLibrary l{};
    l.version = DeviceLibrary::kVersion;
    l.count = [] { return 1; };
    l.devices = [] { return std::vector<DeviceInfo>(1); };
    l.open = [](int) -> std::unique_ptr<Device> { return std::make_unique<HostDevice>(); };
    l.type = at::kCPU;
    l.float32 = &kernels(fastest_path());
    l.state = host_state_kernels();
    l.group_id = [](bool) {
      static std::atomic<int> next{0};
      return "group " + std::to_string(next++);
    };
    l.join = [](Device&, const GroupOptions& options, Clock&, Deadline,
                const Cancel*) -> std::unique_ptr<DeviceGroup> {
      return std::make_unique<ThreadGroup>(thread_mail(options.id), options.rank, options.size);
    };
    return l;
  }();
  return library;
}

}  // namespace tutti::testing_support
