// Strangers at the ports where ranks meet: whoever has no token, talks nonsense, or is of another
// run, epoch or plan is refused and holds nobody up.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "net/tcp/tcp_wire.h"
#include "support/sockets.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

int port_in(const Card& card) { return std::stoi(card.bytes.substr(card.bytes.rfind(' ') + 1)); }

Fd dial(int port) {
  Fd fd = loopback_socket();
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

/// Waits until the other end has closed; false after ten seconds.
bool sees_close(int socket) {
  timeval limit{10, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  char byte = 0;
  const ssize_t n = ::recv(socket, &byte, 1, 0);
  return n == 0 || (n < 0 && errno == ECONNRESET);
}

/// Rank 0 makes a tcp transport; rank 1 is played by hand with raw sockets, after both have met as
/// make_transport does.
void play_rank_one(const std::function<void(SystemClock&, Transport&)>& rank_zero,
                   const std::function<void(int port)>& rank_one) {
  TransportOptions options{.kind = "tcp", .connections = 1};
  const auto errors = run_threads(2, [&](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    if (rank == 0) {
      auto transport = make_transport(options, kTestEpoch, rendezvous, clock, nullptr,
                                      clock.after(std::chrono::seconds(20)));
      rank_zero(clock, *transport);
    } else {
      rendezvous.exchange({.bytes = transport_terms(options, kTestEpoch)}, Deadline::never());
      rank_one(port_in(rendezvous.exchange({.bytes = "127.0.0.1 1"}, Deadline::never())[0]));
    }
    rendezvous.exchange({}, Deadline::never());
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

void send_all(const Fd& fd, const void* data, size_t size) {
  ASSERT_EQ(::send(fd.get(), data, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

Hello good_hello() {
  return {.epoch = kTestEpoch.epoch,
          .run = kTestEpoch.run,
          .plan = kTestEpoch.plan,
          .rank = 1,
          .connection = 0};
}

/// Unread bytes would turn the close of the socket into a reset, which takes what was sent with it.
void read_welcome(const Fd& fd) {
  Welcome welcome;
  ASSERT_EQ(::recv(fd.get(), &welcome, sizeof(welcome), MSG_WAITALL),
            static_cast<ssize_t>(sizeof(welcome)));
}

TEST(TcpStrangers, WithoutTheTokenAreRefusedAndHoldNobodyUp) {
  play_rank_one(
      [](SystemClock& clock, Transport& transport) {
        int in = 0;
        transport.wait(transport.post_recv(1, {1, 0, 0}, std::as_writable_bytes(std::span(&in, 1))),
                       clock.after(std::chrono::seconds(20)));
        EXPECT_EQ(in, 4711);
        EXPECT_EQ(transport.dropped(), 2u)
            << "a connection of another epoch and one of another plan";
      },
      [](int port) {
        Fd silent = dial(port);
        Fd wrong_token = dial(port);
        Hello hello = good_hello();
        hello.run ^= 1;
        send_all(wrong_token, &hello, sizeof(hello));
        EXPECT_TRUE(sees_close(wrong_token.get()));
        Fd noise = dial(port);
        send_all(noise, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 36);
        EXPECT_TRUE(sees_close(noise.get()));
        Fd cut_short = dial(port);
        send_all(cut_short, &hello, 5);
        cut_short.reset();
        Hello other_epoch = good_hello(), other_plan = good_hello();
        ++other_epoch.epoch;
        ++other_plan.plan;
        for (const Hello& other : {other_epoch, other_plan}) {
          Fd of_another_time = dial(port);
          send_all(of_another_time, &other, sizeof(other));
          EXPECT_TRUE(sees_close(of_another_time.get()));
        }
        Fd odd_rank = dial(port);
        hello = good_hello();
        hello.rank = 1'000'000;
        send_all(odd_rank, &hello, sizeof(hello));
        EXPECT_TRUE(sees_close(odd_rank.get()));

        Fd good = dial(port);
        hello = good_hello();
        send_all(good, &hello, sizeof(hello));
        read_welcome(good);
        EXPECT_TRUE(sees_close(silent.get()))
            << "once the mesh stands, the listener and its strangers go";
        const PieceHead head{.epoch = kTestEpoch.epoch,
                             .run = kTestEpoch.run,
                             .plan = kTestEpoch.plan,
                             .tag = {1, 0, 0},
                             .number = 0,
                             .size = 4,
                             .offset = 0,
                             .length = 4};
        const int value = 4711;
        send_all(good, &head, sizeof(head));
        send_all(good, &value, sizeof(value));
      });
}

TEST(TcpStrangers, ThatCrowdAPeerOutMakeItDialAgain) {
  const TransportOptions options{.kind = "tcp", .connections = 1};
  const auto errors = run_threads(2, [&](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    if (rank == 1) {
      auto transport = make_transport(options, kTestEpoch, rendezvous, clock, nullptr,
                                      clock.after(std::chrono::seconds(20)));
      rendezvous.exchange({}, Deadline::never());
      return;
    }
    // Rank 0 is played by hand: it closes the first connections as it would those of strangers, at
    // each stage.
    const Fd listener = loopback_socket();
    sockaddr_in address = loopback(0);
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(listener.get(), 8), 0);
    const timeval limit{10, 0};
    ASSERT_EQ(::setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    socklen_t length = sizeof(address);
    ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    rendezvous.exchange({.bytes = transport_terms(options, kTestEpoch)}, Deadline::never());
    rendezvous.exchange({.bytes = fmt::format("127.0.0.1 {}", ntohs(address.sin_port))},
                        Deadline::never());
    for (int n = 0; n < 4; ++n) {
      Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ASSERT_TRUE(socket) << "it does not dial again after " << n;
      Hello hello;
      // before it has said anything
      if (n == 0) continue;
      // what is unread makes it a reset
      if (n == 1) ASSERT_EQ(::recv(socket.get(), &hello, 1, MSG_WAITALL), 1);
      if (n >= 2)
        ASSERT_EQ(::recv(socket.get(), &hello, sizeof(hello), MSG_WAITALL), ssize_t{sizeof(hello)});
      if (n < 3) continue;
      const Welcome welcome{.rank = 0};
      send_all(socket, &welcome, sizeof(welcome));
      rendezvous.exchange({}, Deadline::never());
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(TcpStrangers, ThatConnectAndCloseWithoutEndKeepNoRankFromItsPeers) {
  constexpr int kRanks = 4, kStrangers = 4;
  const int port = free_ports(kRanks);
  std::atomic<bool> over{false};
  std::vector<std::thread> strangers;
  for (int s = 0; s < kStrangers; ++s) {
    strangers.emplace_back([&, s] {
      for (int n = s; !over; ++n) {
        const Fd socket = loopback_socket();
        const sockaddr_in address = loopback(port + n % kRanks);
        (void)!::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                         sizeof(address));
      }
    });
  }
  for (int round = 0; round < 10; ++round) {
    const auto errors = run_threads(kRanks, [&](int, Rendezvous& rendezvous) {
      SystemClock clock;
      auto transport = make_transport({.kind = "tcp", .port = port}, kTestEpoch, rendezvous, clock,
                                      nullptr, clock.after(std::chrono::seconds(30)));
      rendezvous.exchange({}, Deadline::never());
    });
    EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  }
  over = true;
  for (std::thread& stranger : strangers) stranger.join();
}

TEST(TcpStrangers, CannotGuessTheToken) {
  std::set<uint64_t> tokens, upper, lower;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t token = new_token();
    tokens.insert(token);
    upper.insert(token >> 48);
    lower.insert(token & 0xffff);
  }
  EXPECT_EQ(tokens.size(), 1000u);
  EXPECT_GT(upper.size(), 900u);  // a process's number or a clock would move either half only
  EXPECT_GT(lower.size(), 900u);
}

TEST(TcpStrangers, MessagesOfAnotherRunEpochOrPlanAreDroppedAndCounted) {
  play_rank_one(
      [](SystemClock& clock, Transport& transport) {
        int in = 0;
        transport.wait(transport.post_recv(1, {1, 0, 0}, std::as_writable_bytes(std::span(&in, 1))),
                       clock.after(std::chrono::seconds(20)));
        EXPECT_EQ(in, 4);
        EXPECT_EQ(transport.dropped(), 3u);
      },
      [](int port) {
        Fd socket = dial(port);
        const Hello hello = good_hello();
        send_all(socket, &hello, sizeof(hello));
        read_welcome(socket);
        for (int value = 1; value <= 4; ++value) {
          PieceHead head{.epoch = kTestEpoch.epoch,
                         .run = kTestEpoch.run,
                         .plan = kTestEpoch.plan,
                         .tag = {1, 0, 0},
                         .number = 0,
                         .size = 4,
                         .offset = 0,
                         .length = 4};
          if (value == 1) ++head.run;
          if (value == 2) --head.epoch;
          if (value == 3) ++head.plan;
          send_all(socket, &head, sizeof(head));
          send_all(socket, &value, sizeof(value));
        }
      });
}

TEST(TcpStrangers, APeerThatTalksNonsenseIsAnErrorAndNotACrash) {
  play_rank_one(
      [](SystemClock& clock, Transport& transport) {
        const CommFailure failure =
            failing_receive(transport, 1, clock.after(std::chrono::seconds(20)));
        EXPECT_EQ(failure.reason, "connection to rank 1 was closed: what arrived is no message");
      },
      [](int port) {
        Fd socket = dial(port);
        const Hello hello = good_hello();
        send_all(socket, &hello, sizeof(hello));
        read_welcome(socket);
        const std::string noise(1000, 'x');
        send_all(socket, noise.data(), noise.size());
      });
}

}  // namespace
}  // namespace tutti
