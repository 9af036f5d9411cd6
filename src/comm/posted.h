// Messages under way, and the name under which their failure is reported.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "net/transport.h"

namespace tutti {

/// Tickets in the order in which they were posted. At its end it waits for whatever is still under
/// way, with a deadline that has passed: a span belongs to the transport until its wait returns or
/// throws, so an exception may leave none behind.
class Posted {
 public:
  explicit Posted(Transport& transport) : transport_(transport) {}
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;
  ~Posted() {
    for (; done_ < tickets_.size(); ++done_) {
      try {
        transport_.wait(tickets_[done_], Deadline{Time{}});
      } catch (const Error&) {  // the failure that ended the operation is already on its way up
      }
    }
  }
  void send(int peer, Tag tag, std::span<const std::byte> bytes) {
    if (!bytes.empty()) tickets_.push_back(transport_.post_send(peer, tag, bytes));
  }
  void recv(int peer, Tag tag, std::span<std::byte> bytes) {
    if (!bytes.empty()) tickets_.push_back(transport_.post_recv(peer, tag, bytes));
  }
  size_t count() const { return tickets_.size(); }
  /// Waits until the first `count` of the tickets are done.
  void wait_first(size_t count, const Patience& patience) {
    while (done_ < count) transport_.wait(tickets_[done_++], patience);
  }
  void wait_all(const Patience& patience) { wait_first(tickets_.size(), patience); }

 private:
  Transport& transport_;
  std::vector<Ticket> tickets_;
  size_t done_ = 0;
};

/// Runs f. A CommError that it throws is given this operation and sequence: the caller knows the
/// instruction, the transport only tags.
template <typename F>
void named(const std::string& operation, uint64_t sequence, F&& f) {
  try {
    f();
  } catch (const CommError& error) {
    CommFailure failure = error.failure();
    failure.operation = operation;
    failure.sequence = sequence;
    throw CommError(std::move(failure));
  }
}

}  // namespace tutti
