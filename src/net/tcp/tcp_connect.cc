// All sockets are non-blocking from the start and served by one loop, so a stranger who connects
// and says nothing, or nonsense, holds nobody up. Strangers may crowd a peer out of the places for
// those that wait to be admitted, so whoever was closed before it was admitted dials again.
//
// The life of a connection:
//   dialling rank   connect, send Hello, read Welcome, admitted
//   listening rank  accept, read Hello, send Welcome, admitted
#include "net/tcp/tcp_connect.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <list>

#include "base/error.h"
#include "net/tcp/tcp_wire.h"

namespace tutti {

namespace {

// connections that were accepted and not yet admitted; when there are more, the oldest is closed
constexpr size_t kMaxStrangers = 128;
// Connections accepted at once. Those that have said who they are get their turn before so many
// more come that they are crowded out.
constexpr int kArrivals = 32;
// pause before a peer is dialled again
constexpr Duration kPause = std::chrono::milliseconds(10);

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Address resolve(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw Error(fmt::format("address {}: {}", host, ::gai_strerror(error)));
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

int port_of(int socket) {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &length) != 0)
    throw_errno("name", "socket");
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

Fd open_socket(int family) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("open", "tcp socket");
  return fd;
}

Fd listen_on(const std::string& host, int port) {
  const Address address = resolve(host, port);
  Fd fd = open_socket(address.storage.ss_family);
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE)
      throw Error(fmt::format("port {} on {} is already in use", port, host));
    throw_errno("listen on", fmt::format("port {} of {}", port, host));
  }
  return fd;
}

/// A connection that was closed before it was admitted.
struct Redial {
  Time at;
  int peer, connection;
};

/// A connection on its way to being admitted.
struct Candidate {
  Fd fd;
  bool dialled = false;  // by this rank; else it was accepted
  int peer = -1;         // of a dialled one: whom
  int connection = -1;   // of a dialled one: which
  bool greeted = false;  // of a dialled one: its Hello has left
  // what is read: the Hello of an accepted one, the Welcome of a dialled one
  char answer[sizeof(Hello)] = {};
  size_t have = 0;
};

class Connector {
 public:
  Connector(const TransportOptions& options, const Epoch& epoch, const std::vector<bool>& reach,
            Rendezvous& rendezvous, Clock& clock, const Cancel* cancel, Patience patience)
      : options_(options),
        epoch_(epoch),
        reach_(reach),
        rendezvous_(rendezvous),
        rank_(rendezvous.rank()),
        clock_(clock),
        cancel_(cancel),
        patience_(std::move(patience)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_) throw_errno("epoll_create", "tcp");
  }
  TcpSockets run();

 private:
  void dial(int peer, int connection);
  void dial_again(const Candidate& candidate);
  void redial_due();
  void accept_some();
  bool serve(Candidate& candidate);
  bool read_answer(Candidate& candidate, size_t bytes);
  bool admit_accepted(Candidate& candidate);
  void admit(Candidate& candidate, int peer, int connection);
  void watch(int fd, uint32_t events, void* what);
  void wait_for_events();
  [[noreturn]] void fail(int peer, std::string reason);

  const TransportOptions& options_;
  const Epoch epoch_;
  const std::vector<bool>& reach_;
  Rendezvous& rendezvous_;
  const int rank_;
  Clock& clock_;
  const Cancel* const cancel_;
  const Patience patience_;
  // Of the connections: strangers that keep this rank busy do not lengthen it.
  Deadline deadline_;
  const Time start_ = clock_.now();
  Fd epoll_, listener_;
  std::list<Candidate> candidates_;
  std::vector<Card> deck_;  // where every rank listens
  std::vector<Redial> redials_;
  int closed_ = 0;   // connections of mine that were closed before they were admitted
  int missing_ = 0;  // connections that are not admitted yet
  TcpSockets links_;
};

void Connector::fail(int peer, std::string reason) {
  throw CommError({.rank = rank_,
                   .operation = "connect",
                   .peer = peer,
                   .sequence = epoch_.epoch,
                   .waited = clock_.now() - start_,
                   .reason = std::move(reason)});
}

void Connector::watch(int fd, uint32_t events, void* what) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = what;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) throw_errno("watch", "tcp socket");
}

void Connector::dial(int peer, int connection) {
  const std::string& where = deck_[peer].bytes;
  const size_t cut = where.rfind(' ');
  const Address address = resolve(where.substr(0, cut), std::stoi(where.substr(cut + 1)));

  // The candidate exists before the connect begins, so that the loop serves whatever comes of it.
  Candidate& candidate = candidates_.emplace_back();
  candidate.fd = open_socket(address.storage.ss_family);
  candidate.dialled = true;
  candidate.peer = peer;
  candidate.connection = connection;
  if (::connect(candidate.fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    fail(peer, fmt::format("{}: {}", where, std::strerror(errno)));
  }
  watch(candidate.fd.get(), EPOLLOUT, &candidate);
}

/// Dials again after a pause: a peer that is crowded needs the time, and one that is gone refuses
/// the next connection.
void Connector::dial_again(const Candidate& candidate) {
  ++closed_;
  redials_.push_back({clock_.awake() + kPause, candidate.peer, candidate.connection});
}

void Connector::redial_due() {
  const auto later =
      std::partition(redials_.begin(), redials_.end(),
                     [now = clock_.awake()](const Redial& redial) { return redial.at > now; });
  const std::vector<Redial> due(later, redials_.end());
  redials_.erase(later, redials_.end());
  for (const Redial& redial : due) dial(redial.peer, redial.connection);
}

void Connector::accept_some() {
  for (int n = 0; n < kArrivals; ++n) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));

    // Out of descriptors, the listener would be reported without end: a stranger makes room.
    const bool out_of_descriptors = !fd && (errno == EMFILE || errno == ENFILE);
    if (!fd && !out_of_descriptors) return;

    // The oldest stranger goes, since it had the longest to say who it is. A peer among them dials
    // again.
    const auto stranger = [](const Candidate& c) { return !c.dialled; };
    if (out_of_descriptors ||
        std::count_if(candidates_.begin(), candidates_.end(), stranger) >= ssize_t{kMaxStrangers}) {
      auto oldest = std::find_if(candidates_.begin(), candidates_.end(), stranger);
      if (oldest == candidates_.end()) throw Error("tcp: too many open files");
      candidates_.erase(oldest);
    }

    // The place that was made is used at the next report.
    if (!fd) return;
    Candidate& candidate = candidates_.emplace_back();
    candidate.fd = std::move(fd);
    watch(candidate.fd.get(), EPOLLIN, &candidate);
  }
}

/// Reads up to `bytes` bytes of the answer. Returns false if not all of them are there yet, and
/// clears `fd` if the other end is gone.
bool Connector::read_answer(Candidate& candidate, size_t bytes) {
  const ssize_t n =
      ::recv(candidate.fd.get(), candidate.answer + candidate.have, bytes - candidate.have, 0);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    candidate.fd.reset();
    return false;
  }
  candidate.have += n > 0 ? static_cast<size_t>(n) : 0;
  return candidate.have == bytes;
}

void Connector::admit(Candidate& candidate, int peer, int connection) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, candidate.fd.get(), nullptr);

  // A small message must not wait for more to send with it.
  const int on = 1;
  ::setsockopt(candidate.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  links_.sockets[peer][connection] = std::move(candidate.fd);
  --missing_;
}

bool Connector::admit_accepted(Candidate& candidate) {
  Hello hello;
  std::memcpy(&hello, candidate.answer, sizeof(hello));

  // Without the token nothing is said and nothing counted: it is a stranger. A holder of the token
  // from another epoch or plan is a late member of this run.
  if (hello.magic != kHelloMagic || hello.run != epoch_.run) return false;
  if (hello.epoch != epoch_.epoch || hello.plan != epoch_.plan) {
    ++links_.refused;
    return false;
  }

  // Only a higher rank dials me, and each of its connections once.
  const int peer = hello.rank, connection = hello.connection;
  const bool expected = peer > rank_ && peer < rendezvous_.size() && reach_[peer] &&
                        connection >= 0 && connection < options_.connections &&
                        !links_.sockets[peer][connection];
  if (!expected) return false;

  // A socket that has sent nothing yet always takes a few bytes.
  const Welcome welcome{.rank = rank_};
  if (::send(candidate.fd.get(), &welcome, sizeof(welcome), MSG_NOSIGNAL) != sizeof(welcome))
    return false;
  admit(candidate, peer, connection);
  return true;
}

/// Returns whether the candidate is still one.
bool Connector::serve(Candidate& candidate) {
  // Accepted: its Hello decides. Either way it is no candidate after that.
  if (!candidate.dialled) {
    if (!read_answer(candidate, sizeof(Hello))) return static_cast<bool>(candidate.fd);
    admit_accepted(candidate);
    return false;
  }

  // Dialled: the connection was made or refused. A reset is a peer that is crowded, or that closed
  // its listener for good, which the next attempt tells; any other error is final.
  if (!candidate.greeted) {
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(candidate.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == ECONNRESET) {
      dial_again(candidate);
      return false;
    }
    if (error != 0) fail(candidate.peer, std::strerror(error));

    // From here on it waits for the Welcome.
    const Hello hello{.epoch = epoch_.epoch,
                      .run = epoch_.run,
                      .plan = epoch_.plan,
                      .rank = rank_,
                      .connection = candidate.connection};
    if (::send(candidate.fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
      dial_again(candidate);
      return false;
    }
    candidate.greeted = true;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, candidate.fd.get(), nullptr);
    watch(candidate.fd.get(), EPOLLIN, &candidate);
    return true;
  }

  // Greeted: the Welcome admits it. A peer that was crowded out before is dialled again.
  if (!read_answer(candidate, sizeof(Welcome))) {
    if (!candidate.fd) dial_again(candidate);
    return static_cast<bool>(candidate.fd);
  }

  Welcome welcome;
  std::memcpy(&welcome, candidate.answer, sizeof(welcome));
  if (welcome.magic != kWelcomeMagic || welcome.rank != candidate.peer) {
    fail(candidate.peer, "who answers there is not that rank");
  }

  admit(candidate, candidate.peer, candidate.connection);
  return false;
}

void Connector::wait_for_events() {
  const Time now = clock_.awake();
  Time until = std::min(deadline_.at, now + Clock::kSlice);
  for (const Redial& redial : redials_) until = std::min(until, redial.at);
  clock_.wait_fd(epoll_.get(), {until});
  // Judged whether or not something is ready: strangers that come without end must not outlast a
  // cancel or the deadline.
  const bool cancelled = cancel_ != nullptr && cancel_->cancelled();
  if (!cancelled && now < deadline_.at) return;

  // The error names the first peer that is not wholly connected.
  int peer = 0;
  auto complete = [&](int r) {
    return std::all_of(links_.sockets[r].begin(), links_.sockets[r].end(),
                       [](const Fd& fd) { return bool(fd); });
  };
  while (peer < rendezvous_.size() && complete(peer)) ++peer;
  if (cancelled) fail(peer, cancel_->reason());
  if (closed_ == 0) fail(peer, "timed out");
  fail(peer,
       fmt::format("timed out; {} connections of this rank were closed before they were admitted",
                   closed_));
}

TcpSockets Connector::run() {
  // Everybody listens before anybody learns where, so nobody dials in vain.
  listener_ = listen_on(options_.address, options_.port == 0 ? 0 : options_.port + rank_);
  deck_ = rendezvous_.exchange(
      {.bytes = fmt::format("{} {}", options_.address, port_of(listener_.get()))}, patience_);
  deadline_ = patience_.strict();
  watch(listener_.get(), EPOLLIN, nullptr);

  // The higher rank of a pair dials: each connection is made once, and no two cross.
  links_.sockets.resize(rendezvous_.size());
  for (int r = 0; r < rendezvous_.size(); ++r) {
    if (r == rank_ || !reach_[r]) continue;
    links_.sockets[r].resize(options_.connections);
    missing_ += options_.connections;
    for (int c = 0; r < rank_ && c < options_.connections; ++c) dial(r, c);
  }

  // One loop serves the listener, those that dialled and those that are dialled.
  while (missing_ > 0) {
    wait_for_events();
    epoll_event events[64];
    const int n = ::epoll_wait(epoll_.get(), events, 64, 0);
    bool arrivals = false;
    for (int i = 0; i < n; ++i) {
      if (events[i].data.ptr == nullptr) {
        // Served after this loop: it may remove candidates that are still in `events`.
        arrivals = true;
        continue;
      }
      auto* candidate = static_cast<Candidate*>(events[i].data.ptr);
      if (serve(*candidate)) continue;
      candidates_.remove_if([&](const Candidate& c) { return &c == candidate; });
    }
    if (arrivals) accept_some();
    redial_due();
  }
  return std::move(links_);
}

}  // namespace

TcpSockets connect_all(const TransportOptions& options, const Epoch& epoch,
                       const std::vector<bool>& reach, Rendezvous& rendezvous, Clock& clock,
                       const Cancel* cancel, Patience patience) {
  return Connector(options, epoch, reach, rendezvous, clock, cancel, std::move(patience)).run();
}

}  // namespace tutti
