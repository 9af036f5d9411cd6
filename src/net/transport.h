// A transport moves tagged bytes between the ranks of one epoch. inproc (threads of one process),
// shm (processes of one host), tcp, and in tests a simulated one, all keep this contract:
//
//   messages   post_send/post_recv return at once; wait(ticket) blocks until the bytes have left
//              (send) or arrived (recv). A message is matched by (peer, tag). Two messages with
//              equal tag between the same two ranks are matched in order. A peer is never the rank
//              itself. Spans must stay alive and untouched until wait returns or throws. A receive
//              that is posted before the bytes arrive gets them without a further copy.
//   windows    memory that the other ranks of the host can read and never write: one-sided reads,
//              as with MPI's windows. Alongside it, every rank has counters that it raises and the
//              others can wait for. Where there is no window (tcp), window() is empty and peers
//              exchange messages.
//   failure    a wait throws CommError when its patience ends, when the peer's connection is lost,
//              or when the run is cancelled, naming peer, tag and time waited. After a throw the
//              transport can only be destroyed, no span is touched any more, and every other wait
//              throws too. A rank that destroys its transport ends the waits for it.
//   epochs     every message carries run, epoch and plan hash; one of another run, epoch or plan is
//              dropped and counted.
//   threads    all methods may be called from any thread. Destruction waits for no other rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/patience.h"
#include "base/wait.h"

namespace tutti {

/// What a message belongs to. `operation` is the instruction's id in the plan (or a collective's
/// own number), `sequence` the step or call number, `part` tells messages of one operation apart.
struct Tag {
  uint32_t operation = 0;
  uint32_t part = 0;
  uint64_t sequence = 0;
  auto operator<=>(const Tag&) const = default;
};

/// What all ranks of an epoch agree on; carried by every message.
struct Epoch {
  uint64_t run = 0;    ///< the run's token; admits to listeners too
  uint32_t epoch = 0;  ///< membership number
  uint64_t plan = 0;   ///< hash of the plan
};

/// A posted send or receive.
struct Ticket {
  uint64_t id = 0;
};

/// Memory of a rank that others may read through its transport. It exists as long as somebody holds
/// it, so its contents outlive the transport that it was made for, and a later transport may show
/// it again.
class Window {
 public:
  virtual ~Window() = default;
  virtual std::span<std::byte> bytes() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;

  virtual Ticket post_send(int peer, Tag tag, std::span<const std::byte> bytes) = 0;
  virtual Ticket post_recv(int peer, Tag tag, std::span<std::byte> bytes) = 0;
  virtual void wait(Ticket ticket, Patience patience) = 0;

  /// My window, which I alone can write; empty where the transport has none. It is page-aligned,
  /// and zero when it is made.
  virtual std::span<std::byte> window() { return {}; }
  /// The same window, to be kept longer than the transport.
  virtual std::shared_ptr<Window> held_window() { return nullptr; }
  /// A peer's window for reading (mine too); empty where it cannot be reached.
  virtual std::span<const std::byte> window_of(int /*peer*/) const { return {}; }
  /// Raises my counter `index` (0 <= index < kWindowFlags, see plan/ir/window_flags.h) to `value`
  /// (release) and wakes whoever waits for it. Only for transports with windows.
  virtual void raise(int index, uint64_t value);
  /// Blocks until the peer's counter `index` is at least `value` (acquire). Errors name `what`.
  virtual void await(int peer, int index, uint64_t value, Patience patience, std::string_view what);

  /// Leaves the others, as destruction does: their waits for this rank end, and so do its own.
  /// Windows that it sees stay readable until it is destroyed.
  virtual void leave() = 0;

  /// Payload bytes sent to a peer so far (windows: bytes read from it count for the reader as
  /// received, not here).
  virtual uint64_t sent_bytes(int peer) const = 0;
  /// Messages dropped because they belonged to another run, epoch or plan.
  virtual uint64_t dropped() const = 0;
};

}  // namespace tutti
