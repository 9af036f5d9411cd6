// Faults of real processes and sockets: kills, cuts, busy ports, memory that cannot be had, and
// nothing left over. Strangers at a port have net_strangers_test.cc.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "support/sockets.h"
#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

const TransportOptions kTcp{.kind = "tcp"};

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

/// Binds to a port of loopback (0: any) and returns the port; -1: it is in use.
int bind_loopback(const Fd& socket, int port) {
  sockaddr_in address = loopback(port);
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return -1;
  socklen_t length = sizeof(address);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
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
