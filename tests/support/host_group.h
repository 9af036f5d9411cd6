// A DeviceGroup over a Transport: messages between HostDevices. Sums add the ranks' values up in
// rank order.
#pragma once

#include <chrono>
#include <vector>

#include "comm/posted.h"
#include "device/group.h"
#include "net/transport.h"

namespace tutti::testing_support {

/// Every operation has ended when its call returns, or throws CommError after `patience`.
class HostGroup final : public DeviceGroup {
 public:
  HostGroup(Transport& transport, Clock& clock, Duration patience = std::chrono::seconds(20))
      : transport_(transport), clock_(clock), patience_(patience) {}
  int rank() const override { return transport_.rank(); }
  int size() const override { return transport_.size(); }

  void exchange(Stream, std::span<const DeviceSend> sends,
                std::span<const DeviceReceive> receives) override {
    ++exchanges_;
    messages_ += static_cast<int64_t>(sends.size());
    Posted posted(transport_);
    // Messages of equal tag between two ranks are matched in order.
    for (const DeviceReceive& r : receives)
      posted.recv(r.peer, kTag, {static_cast<std::byte*>(r.to), r.bytes});
    for (const DeviceSend& s : sends)
      posted.send(s.peer, kTag, {static_cast<const std::byte*>(s.from), s.bytes});
    posted.wait_all(clock_.after(patience_));
  }
  void sum(Stream stream, double* values, int64_t n) override { sum_all(stream, values, n); }
  void sum(Stream stream, float* values, int64_t n) override { sum_all(stream, values, n); }
  std::string fault() override { return aborted_ ? "aborted" : ""; }
  void abort() override { aborted_ = true; }

  int64_t exchanges() const { return exchanges_; }
  int64_t messages() const { return messages_; }  ///< sent, of exchanges

 private:
  static constexpr Tag kTag{0x7e57d, 0, 0};

  template <typename T>
  void sum_all(Stream, T* values, int64_t n) {
    std::vector<std::vector<T>> all(size(), std::vector<T>(n));
    all[rank()].assign(values, values + n);
    Posted posted(transport_);
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.recv(r, kTag, std::as_writable_bytes(std::span(all[r])));
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) posted.send(r, kTag, std::as_bytes(std::span(all[rank()])));
    }
    posted.wait_all(clock_.after(patience_));
    for (int64_t i = 0; i < n; ++i) {
      T total = all[0][i];
      for (int r = 1; r < size(); ++r) total += all[r][i];
      values[i] = total;
    }
  }

  Transport& transport_;
  Clock& clock_;
  Duration patience_;
  bool aborted_ = false;
  int64_t exchanges_ = 0, messages_ = 0;
};

}  // namespace tutti::testing_support
