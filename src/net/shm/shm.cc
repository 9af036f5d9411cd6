// Messages are a stream of heads and bytes in the ring of their pair. The transport has no thread:
// whoever waits moves all rings on, in both directions, whenever the bell of its rank was rung. A
// bell is rung for new bytes, for room in a ring that was full, and by a rank that leaves.
#include "net/shm/shm.h"

#include <bit>
#include <deque>

#include "net/failure.h"
#include "net/shm/byte_ring.h"
#include "net/shm/flags.h"
#include "net/shm/shared_memory.h"

namespace tutti {

namespace {

// Bytes that are published together: the receiver copies one chunk out of the ring while the sender
// copies the next one in.
constexpr size_t kChunk = size_t{32} << 10;

struct Bell {
  alignas(64) Signal signal;
  std::atomic<uint64_t> rung{0};
};

/// The head of a rank's control area. After it come a Ring from every rank, then the bytes of these
/// rings.
struct Control {
  Bell bell;
  alignas(64) std::atomic<uint32_t> left{0};
  Flags flags;
};

struct MessageHead {
  Epoch epoch;
  Tag tag;
  uint64_t size;
};

// Bytes of one ring, a power of two. All rings of a rank together take about 2 MiB, but a ring has
// at least 16 KiB and at most 256 KiB.
size_t ring_bytes(int ranks) {
  return std::clamp(std::bit_floor((size_t{2} << 20) / static_cast<size_t>(ranks)),
                    size_t{16} << 10, size_t{256} << 10);
}

size_t control_bytes(int ranks) {
  return sizeof(Control) + static_cast<size_t>(ranks) * (sizeof(Ring) + ring_bytes(ranks));
}

RingEnd ring_end(Control& owner, int from, int ranks) {
  auto* rings = reinterpret_cast<Ring*>(&owner + 1);
  auto* bytes = reinterpret_cast<std::byte*>(rings + ranks);
  return {rings + from, bytes + static_cast<size_t>(from) * ring_bytes(ranks), ring_bytes(ranks)};
}

/// A rank of my host; empty for ranks of other hosts. The mappings belong to this object.
struct Neighbour {
  Mapping control_memory, window_memory;  // for my own rank only the first
  std::span<std::byte> window;
  RingEnd to, from;
  std::deque<PostedOp*> sends;
  Incoming* arriving = nullptr;
  bool reachable() const { return control_memory.data() != nullptr; }
  Control& control() const { return *reinterpret_cast<Control*>(control_memory.data()); }
};

class Shm final : public Streamed {
 public:
  Shm(int rank, std::vector<Neighbour> ranks, std::shared_ptr<Window> window, const Epoch& epoch,
      Clock& clock, const Cancel* cancel)
      : Streamed(rank, static_cast<int>(ranks.size()), epoch, clock, cancel),
        ranks_(std::move(ranks)),
        window_(std::move(window)) {}

  ~Shm() override { Shm::leave(); }
  void leave() override {
    release_spans("the transport is gone");
    me().left.store(1, std::memory_order_seq_cst);
    for (int r = 0; r < size(); ++r) {
      if (ranks_[r].reachable()) ring_bell(r);
    }
    for (Flag& flag : me().flags) clock_.notify(flag.signal);
  }

  std::string name() const override { return "shm"; }
  std::span<std::byte> window() override { return window_->bytes(); }
  std::shared_ptr<Window> held_window() override { return window_; }
  std::span<const std::byte> window_of(int peer) const override { return ranks_[peer].window; }
  void raise(int index, uint64_t value) override { raise_flag(clock_, me().flags[index], value); }
  void await(int peer, int index, uint64_t value, Patience patience,
             std::string_view what) override;

 protected:
  void begin_send(PostedOp& op) override;
  Signal& signal() override { return me().bell.signal; }
  bool work() const override {
    return me().bell.rung.load(std::memory_order_acquire) != seen_.load();
  }
  void progress() override;

 private:
  Control& me() const { return ranks_[rank_].control(); }
  void ring_bell(int rank) {
    Bell& bell = ranks_[rank].control().bell;
    bell.rung.fetch_add(1, std::memory_order_seq_cst);
    clock_.notify(bell.signal);
  }
  bool push(int peer);
  bool pull(int peer);
  Incoming& begin_message(int peer);

  std::vector<Neighbour> ranks_;
  const std::shared_ptr<Window> window_;
  // how often my bell had been rung when the rings were last moved on
  std::atomic<uint64_t> seen_{0};
};

void Shm::begin_send(PostedOp& op) {
  TUTTI_CHECK(ranks_[op.peer].reachable(), "rank {} is on another host", op.peer);
  ranks_[op.peer].sends.push_back(&op);
  push(op.peer);
}

/// Writes what fits into the ring to a peer. Returns whether a send has ended.
bool Shm::push(int peer) {
  Neighbour& neighbour = ranks_[peer];
  bool ended = false;
  while (!neighbour.sends.empty()) {
    PostedOp& op = *neighbour.sends.front();

    // A head is written whole and together with a first byte of its message, so the reader never
    // finds half a head.
    const size_t head = op.begun ? 0 : sizeof(MessageHead);
    const size_t least = head + (op.size > op.moved ? 1 : 0);
    size_t room = neighbour.to.room();
    if (room < least) {
      // Room that was made just before the question is found by the second look; for any later room
      // the reader rings my bell.
      neighbour.to.ask_for_room();
      room = neighbour.to.room();
      if (room < least) break;
    }

    if (!op.begun) {
      const MessageHead message{epoch_, op.tag, op.size};
      neighbour.to.write(&message, sizeof(message));
      op.begun = true;
    }

    // The peer is rung for every chunk: it may begin to copy before the message has been written.
    const size_t n = std::min({room - head, op.size - op.moved, kChunk});
    neighbour.to.write(op.data + op.moved, n);
    op.moved += n;
    neighbour.to.publish();
    ring_bell(peer);

    // All bytes are in the ring, so the span can be given back: the send is done.
    if (op.moved == op.size) {
      neighbour.sends.pop_front();
      op.finish();
      ended = true;
    }
  }

  return ended;
}

Incoming& Shm::begin_message(int peer) {
  // A message of another run, epoch or plan is read past: its bytes have to leave the ring.
  MessageHead head{};
  ranks_[peer].from.read(&head, sizeof(head));
  const bool drop = !belongs(head.epoch);
  if (drop) count_dropped();
  return inboxes_[peer].begin(0, head.tag, head.size, drop);
}

/// Reads what the ring from a peer holds. Returns whether a receive has ended.
bool Shm::pull(int peer) {
  Neighbour& neighbour = ranks_[peer];
  bool ended = false;
  while (size_t filled = neighbour.from.filled()) {
    if (neighbour.arriving == nullptr) {
      if (filled < sizeof(MessageHead))
        throw Error(fmt::format("the ring from rank {} is damaged", peer));
      neighbour.arriving = &begin_message(peer);
      filled -= sizeof(MessageHead);
    }

    // Chunks are copied straight to the span of the receive, if one was posted in time. The room is
    // given back chunk by chunk, so a message may be larger than its ring.
    Incoming& message = *neighbour.arriving;
    const size_t n = std::min({filled, message.size - message.received, kChunk});
    if (n > 0) neighbour.from.read(message.target(message.received), n);
    message.received += n;
    neighbour.from.release();
    if (neighbour.from.asked_for_room()) ring_bell(peer);

    if (message.complete()) {
      neighbour.arriving = nullptr;
      ended |= inboxes_[peer].settle(message);
    }
  }

  return ended;
}

void Shm::progress() {
  bool ended = false;
  {
    std::lock_guard lock(mutex_);
    // The count of rings is taken before the rings are looked at: a bell that rings meanwhile is
    // work again.
    seen_.store(me().bell.rung.load(std::memory_order_seq_cst));
    if (broken_) return;

    // `left` is read before the ring: what a rank wrote before it left is in the ring by then and
    // is still delivered.
    for (int r = 0; r < size(); ++r) {
      if (r == rank_ || !ranks_[r].reachable() || lost(r)) continue;
      const bool left = ranks_[r].control().left.load(std::memory_order_seq_cst) != 0;
      std::string loss = left ? fmt::format("rank {} has left", r) : "";
      try {
        ended |= pull(r);
      } catch (const Error& e) {
        loss = e.what();
      }
      if (loss.empty()) {
        ended |= push(r);
      } else {
        lose_peer(r, loss);
        ranks_[r].sends.clear();
        ended = true;
      }
    }
  }
  if (ended) clock_.notify(signal());  // another thread may wait for what has ended here
}

void Shm::await(int peer, int index, uint64_t value, Patience patience, std::string_view what) {
  TUTTI_CHECK(ranks_[peer].reachable(), "rank {} is on another host: no flag for {}", peer, what);
  Control& owner = ranks_[peer].control();
  Flag& flag = owner.flags[index];
  auto raised = [&] { return flag.value.load(std::memory_order_acquire) >= value; };
  // A counter that has been raised already costs no look at the clock.
  if (raised()) return;

  const Time start = clock_.now();
  while (true) {
    // Messages are moved on meanwhile, so that a peer that sends before it raises its
    // counter gets there. This thread does not sleep on the bell, hence the short
    // slices while something is posted.
    Deadline slice = patience.deadline();
    const bool sliced = outstanding_.load(std::memory_order_relaxed) > 0;
    if (sliced) slice.at = std::min(slice.at, clock_.after(std::chrono::milliseconds(1)).at);
    auto ready = [&] { return raised() || owner.left.load() != 0 || broken_ || work(); };
    const WaitResult result = clock_.wait(flag.signal, ready, slice, cancel_);

    // As in inproc, `left` is read before the counter, so that a last raise counts.
    const bool left = owner.left.load() != 0;
    if (raised()) return;
    if (result == WaitResult::kReady && work()) progress();

    // A later reason replaces an earlier one: a cancel is the cause of a broken transport, and that
    // of a peer that has left.
    std::string reason;
    if (clock_.passed(patience.deadline()) && !patience.extend()) reason = "timed out";
    if (left) reason = fmt::format("rank {} has left", peer);
    if (broken_) reason = failed_before();
    if (cancel_ != nullptr && cancel_->cancelled()) reason = cancel_->reason();
    if (reason.empty()) continue;

    release_spans(reason);
    throw CommError({.rank = rank_,
                     .operation = std::string(what),
                     .peer = peer,
                     .sequence = value,
                     .waited = clock_.now() - start,
                     .reason = std::move(reason)});
  }
}

void close_all(std::vector<Card>& deck) {
  for (Card& card : deck) {
    for (int fd : card.fds) Fd{fd}.reset();
    card.fds.clear();
  }
}

}  // namespace

std::unique_ptr<Streamed> make_shm(const TransportOptions& options, const Epoch& epoch,
                                   Rendezvous& rendezvous, Clock& clock, const Cancel* cancel,
                                   Patience patience) {
  const int rank = rendezvous.rank(), size = rendezvous.size();
  const size_t control_size = control_bytes(size);

  // The control area is writable by all, since waiters register in its signals and senders fill its
  // rings; the window is not.
  SharedMemory control =
      allocate_shared(control_size, false, fmt::format("control area of rank {}", rank));
  const auto window = window_for(options.window, options.window_bytes, true,
                                 fmt::format("window of rank {}", rank));

  // A card takes the descriptors to the other ranks: the memory has no name by which they could
  // open it.
  Card mine{.bytes = std::to_string(options.window_bytes), .fds = {control.fd.get()}};
  if (window->fd()) mine.fds.push_back(window->fd().get());
  std::vector<Card> deck = rendezvous.exchange(mine, std::move(patience));

  // Mappings outlive their descriptors, so all descriptors of the deck are closed once everything
  // is mapped, or at the first failure.
  std::vector<Neighbour> ranks(size);
  try {
    for (int r = 0; r < size; ++r) {
      if (!options.hosts.empty() && options.hosts[r] != options.hosts[rank]) continue;
      if (r == rank) {
        ranks[r].control_memory = std::move(control.mapping);
        ranks[r].window = window->bytes();
        continue;
      }
      ranks[r].control_memory = map_shared(deck[r].fds.at(0), control_size, true,
                                           fmt::format("control area of rank {}", r));
      if (deck[r].fds.size() > 1) {
        Mapping& memory = ranks[r].window_memory;
        memory = map_shared(deck[r].fds[1], std::stoull(deck[r].bytes), false,
                            fmt::format("window of rank {}", r));
        ranks[r].window = {memory.data(), memory.size()};
      }
    }
  } catch (...) {
    close_all(deck);
    throw;
  }
  close_all(deck);
  for (int r = 0; r < size; ++r) {
    if (r == rank || !ranks[r].reachable()) continue;
    ranks[r].to = ring_end(ranks[r].control(), rank, size);
    ranks[r].from = ring_end(ranks[rank].control(), r, size);
  }
  return std::make_unique<Shm>(rank, std::move(ranks), window, epoch, clock, cancel);
}

}  // namespace tutti
