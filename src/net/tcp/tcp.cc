// Sending: a message is cut into pieces of kPiece bytes, and every connection of the pair takes
// the next piece whenever it is free. Receiving: the first piece of a message, always on
// connection 0, begins it; a connection that brings a later piece of a message that has not
// begun is left unread until it has.
//
// Threads: the I/O thread alone reads, closes sockets and gives peers up. Only small messages are
// written by the thread that posts them, at once, which spares them a change of threads. What
// posting threads touch, too (operations, inboxes, queues of sends, idle writers), is guarded by
// the transport's lock; no socket is read or written under it, but for those small messages.
//
// The file is longer than most, because writing, reading and losing a peer work on the same
// connections under the same rules for lock and thread, which can only be checked together.
#include "net/tcp/tcp.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/prompt.h"
#include "net/quiet_thread.h"
#include "net/tcp/tcp_connect.h"
#include "net/tcp/tcp_connection.h"

namespace tutti {

namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr size_t kInline = size_t{32} << 10;  // up to this size the posting thread writes by itself
// pieces that one connection may move before the others get their turn
constexpr int kTurn = 4;
// A peer that ends in order closes all its connections, and what is still on its way on the others
// is read until then. If only one connection was cut, the peer is lost after this time.
constexpr Duration kGrace = std::chrono::milliseconds(100);

struct Connection {
  Fd fd;
  int peer = -1, index = -1;
  PieceWriter out;
  PieceReader in;
  PieceHead head;               // of the piece that is being read
  bool have_head = false;       // all of `head` has been read
  bool in_piece = false;        // where the piece goes is known, and its bytes are being read
  Incoming* message = nullptr;  // the piece's message; null: none, its bytes are thrown away
  std::byte* target = nullptr;  // where the bytes of the piece go; null: nowhere
  bool stalled = false;         // it is left unread: the message of its piece has not begun
  bool full = false;            // the socket takes no more for now
  bool watched = false;         // epoll knows it
};

struct Peer {
  std::vector<Connection> connections;
  std::deque<PostedOp*> sends;  // not yet wholly handed to connections
  uint64_t next_number = 0;     // of the messages to this peer
  uint64_t begun = 0;           // count of the messages from this peer that have begun
  Time closing = Time::max();   // when it is given up, if a connection has closed in order
};

class Tcp final : public Streamed {
 public:
  Tcp(int rank, TcpSockets links, const Epoch& epoch, Clock& clock, const Cancel* cancel);
  ~Tcp() override { Tcp::leave(); }
  void leave() override;
  std::string name() const override { return "tcp"; }

 protected:
  void begin_send(PostedOp& op) override;
  Signal& signal() override { return signal_; }
  void stop_moving() override;

 private:
  void serve();
  void serve_event(const epoll_event& event);
  void watch(Connection& connection);
  void wake();

  void write_peer(Peer& peer);
  void write_some(Connection& connection);
  bool take_piece(Peer& peer, Connection& connection);

  void read_some(Connection& connection);
  bool begin_piece(Connection& connection);
  void end_piece(Connection& connection);
  void resume_stalled(Peer& peer);

  void end_of_stream(Connection& connection, int error);
  void give_up(int peer, const std::string& reason);
  void give_up_closing();

  std::vector<Peer> peers_;
  Signal signal_;
  Fd epoll_, wake_;
  std::atomic<bool> woken_{false}, stop_{false};
  std::thread thread_;
};

/// The I/O thread has ended after the first line, so sockets may be closed here.
void Tcp::leave() {
  release_spans("the transport is gone");
  for (Peer& peer : peers_)
    for (Connection& connection : peer.connections) connection.fd.reset();
}

Tcp::Tcp(int rank, TcpSockets links, const Epoch& epoch, Clock& clock, const Cancel* cancel)
    : Streamed(rank, static_cast<int>(links.sockets.size()), epoch, clock, cancel),
      peers_(links.sockets.size()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) throw_errno("start", "tcp transport");
  for (uint64_t i = 0; i < links.refused; ++i) count_dropped();

  // The wake-up descriptor is the event without a connection.
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0)
    throw_errno("watch", "tcp transport");

  // Peers and connections stay where they are from here on: epoll keeps their addresses.
  for (size_t r = 0; r < links.sockets.size(); ++r) {
    peers_[r].connections = std::vector<Connection>(links.sockets[r].size());
    for (size_t c = 0; c < links.sockets[r].size(); ++c) {
      Connection& connection = peers_[r].connections[c];
      connection.fd = std::move(links.sockets[r][c]);
      connection.peer = static_cast<int>(r);
      connection.index = static_cast<int>(c);
      watch(connection);
    }
  }

  // The thread begins last: it uses everything above.
  thread_ = start_quiet_thread([this] { serve(); });
}

void Tcp::stop_moving() {
  stop_ = true;
  wake();
  thread_.join();
}

void Tcp::wake() {
  // Many sends wake the thread once: it looks at all peers when it wakes.
  if (woken_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(wake_.get(), &one, sizeof(one));
}

/// Registers for what the connection waits for: bytes unless it is stalled, room if it is full.
void Tcp::watch(Connection& connection) {
  epoll_event event{};
  event.events = EPOLLIN | (connection.full ? EPOLLOUT : 0);
  event.data.ptr = &connection;
  if (connection.stalled) {
    // Registering for no events would not do: a closed socket is reported all the same, again and
    // again.
    if (connection.watched) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd.get(), nullptr);
    connection.watched = false;
    return;
  }

  ::epoll_ctl(epoll_.get(), connection.watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, connection.fd.get(),
              &event);
  connection.watched = true;
}

void Tcp::serve() {
  wake_promptly();
  while (!stop_) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll_.get(), events, 64, 0);
    for (int i = 0; i < n && !stop_; ++i) serve_event(events[i]);
    if (n > 0) continue;

    // Only without events does the thread sleep, until the next peer that is closing has had its
    // grace.
    Deadline next;
    for (const Peer& peer : peers_) next.at = std::min(next.at, peer.closing);
    clock_.wait_fd(epoll_.get(), next);
    give_up_closing();
  }
}

void Tcp::serve_event(const epoll_event& event) {
  if (event.data.ptr == nullptr) {
    // `woken_` is cleared before the queues are looked at, so a send that comes in between wakes
    // the thread once more.
    uint64_t count = 0;
    [[maybe_unused]] ssize_t n = ::read(wake_.get(), &count, sizeof(count));
    woken_ = false;
    for (Peer& peer : peers_) write_peer(peer);
    return;
  }

  // An earlier event of the same batch may have closed the connection.
  auto& connection = *static_cast<Connection*>(event.data.ptr);
  if (!connection.fd) return;

  // Errors are left to the reading side, which finds their reason after what arrived before.
  if (event.events & ~uint32_t{EPOLLOUT}) read_some(connection);
  if ((event.events & EPOLLOUT) && connection.fd) {
    connection.full = false;
    watch(connection);
    write_peer(peers_[connection.peer]);
  }
}

// Writing

void Tcp::begin_send(PostedOp& op) {
  Peer& peer = peers_[op.peer];
  TUTTI_CHECK(!peer.connections.empty(), "rank {} is not reached by tcp", op.peer);
  op.number = peer.next_number++;
  peer.sends.push_back(&op);

  // A small message with nothing before it leaves at once, on the connection where messages begin.
  // If the socket does not take all of it, the I/O thread goes on.
  Connection& first = peer.connections[0];
  if (op.size <= kInline && peer.sends.size() == 1 && !first.out.busy()) {
    take_piece(peer, first);
    if (first.out.write(first.fd.get()) == IoResult::kDone) {
      first.out.end();
      return;
    }
  }

  wake();
}

/// Gives an idle connection its next piece, if there is one for it. The caller has the lock.
bool Tcp::take_piece(Peer& peer, Connection& connection) {
  // Pieces are handed out in the order of the messages. A message begins on connection 0, and no
  // other connection gets ahead of that.
  if (peer.sends.empty()) return false;
  PostedOp& op = *peer.sends.front();
  if (!op.begun && connection.index != 0) return false;
  op.begun = true;

  // An empty message is one piece of no bytes.
  const PieceHead head{.epoch = epoch_.epoch,
                       .run = epoch_.run,
                       .plan = epoch_.plan,
                       .tag = op.tag,
                       .number = op.number,
                       .size = op.size,
                       .offset = op.moved,
                       .length = std::min(kPiece, op.size - op.moved)};

  // All of it is handed out: the operation leaves the queue and ends with its last piece.
  op.moved += head.length;
  if (op.moved == op.size) peer.sends.pop_front();
  connection.out.begin(op, head);
  return true;
}

void Tcp::write_peer(Peer& peer) {
  for (Connection& connection : peer.connections) {
    if (connection.fd && !connection.full) write_some(connection);
  }
}

void Tcp::write_some(Connection& connection) {
  Peer& peer = peers_[connection.peer];
  bool ended = false;
  int error = 0;
  IoResult result = IoResult::kDone;

  // Piece after piece, until the socket is full or the turn is over. The lock is held to take a
  // piece and to account for it, and not while it is written.
  for (int turn = 0; result == IoResult::kDone; ++turn) {
    if (turn == kTurn) {
      // The socket has room, so the next look at epoll leads back here.
      connection.full = true;
      watch(connection);
      break;
    }
    {
      std::lock_guard lock(mutex_);
      if (!connection.out.busy() && !take_piece(peer, connection)) break;
    }
    result = connection.out.write(connection.fd.get());
    error = errno;
    if (result != IoResult::kDone) break;
    std::lock_guard lock(mutex_);
    ended |= connection.out.end();
  }

  // Ends are announced once per call, after the lock.
  if (ended) clock_.notify(signal_);
  if (result == IoResult::kBlocked) {
    connection.full = true;
    watch(connection);
  }
  if (result == IoResult::kClosed) {
    give_up(connection.peer, fmt::format("connection to rank {} was closed: {}", connection.peer,
                                         std::strerror(error)));
  }
}

// Reading

void Tcp::read_some(Connection& connection) {
  // What was read ahead is not reported by epoll, so a turn ends only where nothing was.
  for (int turn = 0; connection.fd && (turn < kTurn || !connection.in.idle()); ++turn) {
    if (!connection.have_head) {
      const IoResult result = connection.in.read_head(connection.fd.get(), connection.head);
      if (result == IoResult::kClosed) return end_of_stream(connection, errno);
      if (result == IoResult::kBlocked) return;
      connection.have_head = true;
    }

    // A head that has been read is kept while its message has not begun.
    if (!connection.in_piece && !begin_piece(connection)) return;
    const IoResult result =
        connection.in.read_piece(connection.fd.get(), connection.target, connection.head.length);
    if (result == IoResult::kClosed) return end_of_stream(connection, errno);
    if (result == IoResult::kBlocked) return;
    end_piece(connection);
  }
}

/// Finds where the bytes of the piece go. Returns false if they cannot be read now, or never.
///   offset 0        begins a message; these come on connection 0, numbered without gaps
///   number < begun  a later piece of a message that has begun
///   number >= begun its message has not begun: the connection is stalled until it has
bool Tcp::begin_piece(Connection& connection) {
  const PieceHead& head = connection.head;
  Peer& peer = peers_[connection.peer];
  std::string fault;
  bool began = false;
  {
    std::lock_guard lock(mutex_);
    connection.message = nullptr;
    connection.target = nullptr;

    // What a peer says about itself is checked before anything is done with it. A piece of another
    // run, epoch or plan is read and thrown away; its message counts as dropped once.
    if (head.magic != kPieceMagic || head.offset > head.size ||
        head.length > head.size - head.offset) {
      fault = "what arrived is no message";
    } else if (!belongs({head.run, head.epoch, head.plan})) {
      if (head.offset == 0) count_dropped();
    } else if (head.offset == 0) {
      if (connection.index != 0 || head.number != peer.begun) {
        fault = "messages arrived in the wrong order";
      } else {
        try {
          connection.message =
              &inboxes_[connection.peer].begin(head.number, head.tag, head.size, false);
          ++peer.begun;
          began = true;
        } catch (const Error& e) {
          fault = e.what();
        }
      }
    } else if (head.number >= peer.begun) {
      connection.stalled = true;
    } else {
      connection.message = inboxes_[connection.peer].find(head.number);
      if (connection.message == nullptr) fault = "a piece of a message arrived twice";
    }
    if (connection.message != nullptr) connection.target = connection.message->target(head.offset);
  }

  // The lock is free for what follows: giving up and resuming take it themselves.
  if (!fault.empty()) {
    give_up(connection.peer,
            fmt::format("connection to rank {} was closed: {}", connection.peer, fault));
    return false;
  }
  if (connection.stalled) {
    watch(connection);
    return false;
  }

  // A message that has begun lets others go on; reading them may find the end of the peer, which
  // closes this connection, too.
  connection.in_piece = true;
  if (began) resume_stalled(peer);
  return connection.fd ? true : false;
}

void Tcp::resume_stalled(Peer& peer) {
  // Their heads were read when they were stalled, and more may have been read ahead: reading goes
  // on at once, without waiting for epoll.
  for (Connection& other : peer.connections) {
    if (!other.fd || !other.stalled || other.head.number >= peer.begun) continue;
    other.stalled = false;
    watch(other);
    read_some(other);
  }
}

void Tcp::end_piece(Connection& connection) {
  connection.have_head = connection.in_piece = false;
  if (connection.message == nullptr) return;

  // A message is complete when the bytes of all its pieces have come, whichever connection was the
  // last.
  bool ended = false;
  {
    std::lock_guard lock(mutex_);
    Incoming& message = *connection.message;
    message.received += connection.head.length;
    const bool awaited = message.op != nullptr && message.op->awaited;
    if (message.complete()) ended = inboxes_[connection.peer].settle(message) && awaited;
  }
  if (ended) clock_.notify(signal_);
}

// Losing a peer

void Tcp::end_of_stream(Connection& connection, int error) {
  Peer& peer = peers_[connection.peer];
  std::string reason = fmt::format("connection to rank {} was closed", connection.peer);
  if (error != 0) reason += fmt::format(": {}", std::strerror(error));

  // An end in the middle of a piece, or with an error, is the loss of the peer. One between pieces
  // is a peer that leaves, and what its other connections still carry is read first.
  const bool in_order = error == 0 && !connection.have_head && connection.in.idle();
  {
    std::lock_guard lock(mutex_);
    connection.fd.reset();
  }

  // The last connection to close gives the peer up; the first one to close starts its grace.
  bool last = true;
  for (const Connection& other : peer.connections) last &= !other.fd;
  if (!in_order || last) return give_up(connection.peer, reason);
  peer.closing = std::min(peer.closing, clock_.after(kGrace).at);
}

void Tcp::give_up(int peer, const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    lose_peer(peer, reason);
    peers_[peer].sends.clear();
    peers_[peer].closing = Time::max();
    // Writers let go of their operations, whose spans go back to the callers.
    for (Connection& connection : peers_[peer].connections) {
      connection.out.abandon();
      connection.fd.reset();
    }
  }
  clock_.notify(signal_);
}

void Tcp::give_up_closing() {
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r].closing != Time::max() && clock_.passed({peers_[r].closing})) {
      give_up(static_cast<int>(r), fmt::format("connection to rank {} was closed", r));
    }
  }
}

}  // namespace

std::unique_ptr<Streamed> make_tcp(const TransportOptions& options, const Epoch& epoch,
                                   const std::vector<bool>& reach, Rendezvous& rendezvous,
                                   Clock& clock, const Cancel* cancel, Patience patience) {
  TcpSockets links =
      connect_all(options, epoch, reach, rendezvous, clock, cancel, std::move(patience));
  return std::make_unique<Tcp>(rendezvous.rank(), std::move(links), epoch, clock, cancel);
}

}  // namespace tutti
