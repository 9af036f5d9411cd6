// The transports that one suite of tests runs over, by name, and the few lines every such test
// needs.
#pragma once

#include <chrono>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/make.h"
#include "support/forked_ranks.h"

namespace tutti::testing_support {

struct TransportCase {
  std::string name;
  std::string kind;
  bool threads = false;
  bool two_hosts = false;  // the first half of the ranks on one, the rest on the other
};
inline void PrintTo(const TransportCase& which, std::ostream* out) { *out << which.name; }

inline std::vector<TransportCase> all_transports() {
  return {{"inproc", "inproc", true, false},      {"shm_threads", "shm", true, false},
          {"shm_processes", "shm", false, false}, {"tcp_threads", "tcp", true, false},
          {"tcp_processes", "tcp", false, false}, {"mixed_threads", "shm", true, true},
          {"mixed_processes", "shm", false, true}};
}

inline TransportOptions options_for(const TransportCase& which, int ranks) {
  TransportOptions options{.kind = which.kind};
  for (int r = 0; which.two_hosts && r < ranks; ++r)
    options.hosts.push_back(r < (ranks + 1) / 2 ? 0 : 1);
  return options;
}

/// One rank of a test: a clock, a transport and shorthands.
struct TestRank {
  int rank, size;
  SystemClock& clock;
  Transport& transport;

  Deadline soon() const { return clock.after(std::chrono::seconds(20)); }
  int right() const { return (rank + 1) % size; }
  int left() const { return (rank + size - 1) % size; }
  Ticket send(int peer, Tag tag, std::span<const std::byte> bytes) {
    return transport.post_send(peer, tag, bytes);
  }
  Ticket recv(int peer, Tag tag, std::span<std::byte> bytes) {
    return transport.post_recv(peer, tag, bytes);
  }
  void wait(Ticket ticket) { transport.wait(ticket, soon()); }
  /// Returns when all ranks have called it.
  void barrier(uint32_t number) {
    std::byte token{1};
    std::vector<std::byte> tokens(size);
    std::vector<Ticket> tickets;
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      tickets.push_back(send(r, {0xbbbb, 0, number}, {&token, 1}));
      tickets.push_back(recv(r, {0xbbbb, 0, number}, {&tokens[r], 1}));
    }
    for (Ticket ticket : tickets) wait(ticket);
  }
};

inline constexpr Epoch kTestEpoch{.run = 0x1234567890abcdef, .epoch = 3, .plan = 77};

using TestRankBody = std::function<void(TestRank&)>;

/// Makes the transport of a rank, runs the body, and lets nobody leave before all have ended.
inline RankBody with_transport(const TransportOptions& options, const TestRankBody& body,
                               const Cancel* cancel = nullptr) {
  return [options, body, cancel](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport = make_transport(options, kTestEpoch, rendezvous, clock, cancel,
                                    clock.after(std::chrono::seconds(20)));
    TestRank me{rank, rendezvous.size(), clock, *transport};
    body(me);
    rendezvous.exchange({}, clock.after(std::chrono::seconds(20)));
  };
}

/// Runs the body on n ranks over a transport and expects that all end well.
inline void over(const TransportCase& which, int n, const TestRankBody& body,
                 size_t window_bytes = 0) {
  TransportOptions options = options_for(which, n);
  options.window_bytes = window_bytes;
  expect_all_well(which.threads, n, with_transport(options, body));
}

/// The failure of a wait for a message from `peer` that never comes.
inline CommFailure failing_receive(Transport& transport, int peer, Deadline deadline) {
  std::byte byte{};
  try {
    transport.wait(transport.post_recv(peer, {1, 2, 3}, {&byte, 1}), deadline);
  } catch (const CommError& e) {
    return e.failure();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace tutti::testing_support
