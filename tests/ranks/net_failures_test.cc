// Faults of real processes and sockets: kills, cuts, strangers, busy ports, memory that cannot be
// had, and nothing left over.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "net/tcp/tcp_wire.h"
#include "support/sockets.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const TransportOptions kTcp{.kind = "tcp"};

/// The failure of a wait for a message from `peer` that never comes.
CommFailure failing_receive(Transport& transport, int peer, Deadline deadline) {
  std::byte byte{};
  try {
    transport.wait(transport.post_recv(peer, {1, 2, 3}, {&byte, 1}), deadline);
  } catch (const CommError& e) {
    return e.failure();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

/// The sockets among a process's descriptors.
std::vector<int> sockets_of(pid_t pid) {
  std::vector<int> sockets;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().starts_with("socket:")) {
      sockets.push_back(std::stoi(entry.path().filename()));
    }
  }
  return sockets;
}

bool is_tcp(int socket) {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &length) == 0 &&
         name.ss_family == AF_INET;
}

/// What the descriptors of this process lead to, but for its sockets to the launcher; listening
/// sockets are marked.
std::multiset<std::string> open_descriptors() {
  std::multiset<std::string> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone);
    if (gone || target.starts_with("/proc/")) continue;
    int listens = 0;
    socklen_t length = sizeof(listens);
    ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
    open.insert(target + (listens != 0 ? " listens" : ""));
  }
  return open;
}

Fd loopback_socket() { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

/// Binds to a port of loopback (0: any) and returns the port; -1: it is in use.
int bind_loopback(const Fd& socket, int port) {
  sockaddr_in address = loopback(port);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return -1;
  socklen_t length = sizeof(address);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

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

TEST(TcpFaults, KillingAPeerEndsEveryWaitForItWithinASecond) {
  ForkedRanks ranks(3, [](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport =
        make_transport(kTcp, kTestEpoch, rendezvous, clock, nullptr, Deadline::never());
    rendezvous.exchange({}, Deadline::never());
    if (rank == 2) ::kill(::getpid(), SIGKILL);
    const Time start = clock.now();
    const CommFailure failure =
        failing_receive(*transport, 2, clock.after(std::chrono::seconds(20)));
    EXPECT_EQ(failure.peer, 2);
    EXPECT_TRUE(failure.reason.starts_with("connection to rank 2 was closed")) << failure.reason;
    // the promise of the design, not a matter of speed
    EXPECT_LT(clock.now() - start, std::chrono::seconds(1));
  });
  EXPECT_EQ(ranks.wait(), (std::vector<int>{0, 0, SIGKILL}));
}

TEST(TcpFaults, KillingAPeerInTheMiddleOfALargeMessageEndsSendsToIt) {
  ForkedRanks ranks(2, [](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport =
        make_transport(kTcp, kTestEpoch, rendezvous, clock, nullptr, Deadline::never());
    std::vector<std::byte> bytes(64 << 20);
    if (rank == 1) ::raise(SIGSTOP);
    Ticket ticket = transport->post_send(1, {1, 0, 0}, bytes);
    EXPECT_THROW(transport->wait(ticket, clock.after(std::chrono::seconds(20))), CommError);
  });
  int status = 0;
  ASSERT_EQ(::waitpid(ranks.pid(1), &status, WUNTRACED), ranks.pid(1));
  ASSERT_TRUE(WIFSTOPPED(status));
  ::kill(ranks.pid(1), SIGKILL);
  EXPECT_EQ(ranks.wait(), (std::vector<int>{0, SIGKILL}));
}

class CutSockets : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(HowMany, CutSockets, ::testing::Values(1, 100));

TEST_P(CutSockets, EndTheWaitsOnBothSidesWithinASecond) {
  void* shared = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& connected_ranks = *new (shared) std::atomic<int>(0);
  ForkedRanks ranks(2, [&](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    auto transport =
        make_transport(kTcp, kTestEpoch, rendezvous, clock, nullptr, Deadline::never());
    ++connected_ranks;
    // The parent cuts when both are connected; whoever notices first closes the rest.
    const CommFailure failure =
        failing_receive(*transport, 1 - rank, clock.after(std::chrono::seconds(20)));
    EXPECT_NE(failure.reason, "timed out");
    EXPECT_EQ(failure.peer, 1 - rank);
  });
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, ranks.pid(1), 0)));
  ASSERT_TRUE(process);
  int cut = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (cut == 0 && std::chrono::steady_clock::now() < end) {
    if (connected_ranks < 2) continue;
    std::vector<Fd> connected;
    for (int number : sockets_of(ranks.pid(1))) {
      Fd copy(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
      sockaddr_in peer{};
      socklen_t length = sizeof(peer);
      if (copy && is_tcp(copy.get()) &&
          ::getpeername(copy.get(), reinterpret_cast<sockaddr*>(&peer), &length) == 0) {
        connected.push_back(std::move(copy));
      }
    }
    for (const Fd& fd : connected) {
      if (cut < GetParam() && ::shutdown(fd.get(), SHUT_RDWR) == 0) ++cut;
    }
  }
  EXPECT_EQ(cut, std::min(GetParam(), 2));
  EXPECT_EQ(ranks.wait(std::chrono::seconds(30)), (std::vector<int>{0, 0}));
  ::munmap(shared, sizeof(std::atomic<int>));
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

TEST(TcpPort, ABusyOneIsNamed) {
  Fd holder;
  int port = -1;
  do {  // until the port below is free for rank 0
    holder = loopback_socket();
    port = bind_loopback(holder, 0);
  } while (bind_loopback(loopback_socket(), port - 1) < 0);
  ASSERT_EQ(::listen(holder.get(), 1), 0);
  const auto errors = run_threads(2, [&](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    // Rank 1 listens on port + 1: it is rank 1 that meets the busy one.
    make_transport({.kind = "tcp", .port = port - 1}, kTestEpoch, rendezvous, clock, nullptr,
                   clock.after(std::chrono::seconds(20)));
  });
  EXPECT_EQ(errors[1], fmt::format("threw: port {} on 127.0.0.1 is already in use", port));
  EXPECT_NE(errors[0].find("rank 1 left"), std::string::npos) << errors[0];
}

TEST(ShmMemory, ThatExceedsTheLimitOnFileSizesIsAnErrorAtTheStart) {
  const auto statuses = run_forked(2, [](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    if (rank == 1) {
      const rlimit limit{16 << 20, 16 << 20};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    try {
      make_transport({.kind = "shm", .window_bytes = 32 << 20}, kTestEpoch, rendezvous, clock,
                     nullptr, clock.after(std::chrono::seconds(20)));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& e) {
      EXPECT_EQ(rank, 0);
      EXPECT_EQ(e.failure().reason, "rank 1 left");
    } catch (const Error& e) {
      EXPECT_EQ(rank, 1);
      EXPECT_STREQ(e.what(),
                   "window of rank 1: cannot allocate 32 MiB: the limit on file sizes (ulimit "
                   "-f) is 16 MiB");
      ::_exit(0);  // dies as a worker would; the rendezvous ends with it
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(ShmMemory, ThatTheHostDoesNotHaveIsAnErrorAtTheStart) {
  for (const char* kind : {"shm", "inproc"}) {
    const auto errors = run_threads(2, [&](int rank, Rendezvous& rendezvous) {
      SystemClock clock;
      make_transport({.kind = kind, .window_bytes = size_t{1} << 46}, kTestEpoch, rendezvous, clock,
                     nullptr, clock.after(std::chrono::seconds(20)));
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("windows and rings of this host: cannot allocate 128 TiB: only"),
                std::string::npos)
          << error;
    }
  }
}

TEST(Rendezvous, TellsTheOthersOfARankThatDied) {
  const auto statuses = run_forked(3, [](int rank, Rendezvous& rendezvous) {
    SystemClock clock;
    rendezvous.exchange({}, Deadline::never());
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    try {
      rendezvous.exchange({}, clock.after(std::chrono::seconds(20)));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError& e) {
      EXPECT_EQ(e.failure().peer, 1);
      EXPECT_EQ(e.failure().reason, "rank 1 left");
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, SIGKILL, 0}));
}

// A window's descriptor is kept for the next transport that shows it.
TEST(Leftovers, ThereAreNoNamesOrListenersDuringARunAndNoDescriptorsAfterIt) {
  for (const TransportCase& which : all_transports()) {
    if (which.threads) continue;
    SCOPED_TRACE(which.name);
    TransportOptions options = options_for(which, 4);
    options.window_bytes = 1 << 20;
    const auto statuses = run_forked(4, [options](int, Rendezvous& rendezvous) {
      SystemClock clock;
      const auto before = open_descriptors();
      auto transport =
          make_transport(options, kTestEpoch, rendezvous, clock, nullptr, Deadline::never());
      int windows = 0;
      for (const std::string& target : open_descriptors()) {
        EXPECT_FALSE(target.ends_with("listens")) << target;
        EXPECT_FALSE(target.starts_with("/dev/shm")) << target;
        windows += target == "/memfd:tutti (deleted)" ? 1 : 0;
      }
      EXPECT_EQ(windows, transport->window().empty() ? 0 : 1);
      std::ifstream maps("/proc/self/maps");
      for (std::string line; std::getline(maps, line);) {
        EXPECT_EQ(line.find("/dev/shm"), std::string::npos) << line;
        const bool segment = line.find("memfd:tutti") != std::string::npos;
        if (segment)
          EXPECT_NE(line.find("(deleted)"), std::string::npos) << "it has a name: " << line;
      }
      transport.reset();
      EXPECT_EQ(open_descriptors(), before);
      rendezvous.exchange({}, Deadline::never());
    });
    EXPECT_EQ(statuses, std::vector<int>(4, 0));
  }
}

}  // namespace
}  // namespace tutti
