// Who tells whom, and under which numbers, is worked out once, at the start. The tags go by the way
// that a queue's messages take (way_of), not by the queue's place in the program: the queue on
// which one rank sends activations and the queue on which another receives them have the same way.
#include "comm/roll_call.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "comm/posted.h"

namespace tutti {
namespace {

constexpr Duration kGrace = std::chrono::seconds(1);

/// What is told. Ranks compare all of it but the text, which is for people, and cut
/// where it is too long.
struct Record {
  uint64_t step = 0;
  uint32_t id = 0;
  int32_t op = 0, block = -1, parcel = -1, round = -1;
  char text[72] = {};
  bool same(const Record& other) const {
    return step == other.step && id == other.id && op == other.op && block == other.block &&
           parcel == other.parcel && round == other.round;
  }
};

Record record_of(const Instruction& i) {
  Record record;
  record.id = i.id;
  // A Send and its Recv are the same meeting.
  record.op = static_cast<int32_t>(i.op == Op::kRecv ? Op::kSend : i.op);
  record.block = i.block;
  record.parcel = i.parcel;
  record.round = i.round;

  const std::string text = to_string(i);
  std::memcpy(record.text, text.data(), std::min(text.size(), sizeof(record.text) - 1));

  return record;
}

/// A record under way. The transport keeps its address, so letters are stored in deques,
/// which do not move them.
struct Letter {
  Record record;  // of a receive: what arrives
  Ticket ticket;
};
// A stream from this rank.
struct Told {
  int peer;
  uint32_t operation;
  uint64_t count = 0;
  std::deque<Letter> leaving;
};
// What a stream is to bring, and what this rank told at the same meeting.
struct Expected {
  Letter letter;
  Record mine;
  uint64_t meeting;  // its number on the queue in this step, from 1
};
// A stream to this rank.
struct Heard {
  int peer;
  uint32_t operation;
  uint64_t count = 0;
  std::deque<Expected> arriving;
};

/// An instruction's part in the roll call: whom this rank tells, and from whom it hears.
struct Place {
  int queue = 0;
  Record record;
  Told* to = nullptr;
  Heard* from = nullptr;
};
// How many meetings a queue has had in a step, for messages.
struct Turn {
  uint64_t step = UINT64_MAX, meetings = 0;
};

/// As named() of comm/posted.h, but the name is made only when there is something to say: this is
/// called at every meeting.
template <class F>
void naming(const Instruction& instruction, uint64_t step, F&& f) {
  try {
    f();
  } catch (const CommError&) {
    named(to_string(instruction), step, [] { throw; });
  }
}

}  // namespace

struct RollCall::Impl {
  Transport& transport;
  Clock& clock;
  const int me;
  std::vector<std::string> names;  // by queue
  std::vector<Turn> turns;         // by queue
  // by operation and peer; maps, because places keep pointers to their streams
  std::map<std::pair<uint32_t, int>, Told> told;
  std::map<std::pair<uint32_t, int>, Heard> heard;
  std::unordered_map<uint32_t, Place> places;
  mutable std::mutex mutex;
  std::string fault;

  Impl(const Plan& plan, int rank, Transport& net, Clock& time, const Operations& operations)
      : transport(net), clock(time), me(rank) {
    const Program& program = plan.programs[rank];
    turns.resize(program.queues.size());
    for (const Queue& queue : program.queues) {
      const auto number = static_cast<uint32_t>(way_of(queue.use));
      for (const Instruction& i : queue.instructions)
        place(plan, i, static_cast<int>(names.size()), operations.at(number));
      names.push_back(queue.name);
    }
  }

  void place(const Plan& plan, const Instruction& i, int queue, uint32_t operation) {
    Place place{queue, record_of(i)};
    const auto tells = [&](int peer) {
      place.to = &told.try_emplace({operation, peer}, peer, operation).first->second;
    };
    const auto hears = [&](int peer) {
      place.from = &heard.try_emplace({operation, peer}, peer, operation).first->second;
    };
    if (i.op == Op::kSend) tells(i.peer);
    if (i.op == Op::kRecv) hears(i.peer);
    // In a group of two the next rank and the one before are the same. An Acquire is left out: it
    // waits for counters, and nobody comes to it.
    if (meets(i.op) && i.op != Op::kAcquire) {
      const std::vector<int> ranks = members_of(plan, i);
      const size_t size = ranks.size(),
                   at = std::find(ranks.begin(), ranks.end(), me) - ranks.begin();
      TUTTI_CHECK(at < size, "{}: rank {} is not of its group", to_string(i), me);
      if (size > 1) tells(ranks[(at + 1) % size]), hears(ranks[(at + size - 1) % size]);
    }
    if (place.to != nullptr || place.from != nullptr) places.emplace(i.id, place);
  }

  void tell(const Place& place, uint64_t step, const Patience& patience) {
    Turn& turn = turns[place.queue];
    if (turn.step != step) turn = {step, 0};
    ++turn.meetings;

    Record record = place.record;
    record.step = step;

    // The receive is posted before anything is sent, and waited for in hear().
    if (Heard* from = place.from; from != nullptr) {
      Expected& next = from->arriving.emplace_back(Expected{{}, record, turn.meetings});
      const auto bytes = std::as_writable_bytes(std::span(&next.letter.record, 1));
      next.letter.ticket =
          transport.post_recv(from->peer, {from->operation, 0, from->count++}, bytes);
    }

    // What was told before has usually left long ago. Waiting for it here keeps the number of
    // records under way small, and their memory may be used again.
    if (Told* to = place.to; to != nullptr) {
      while (!to->leaving.empty()) {
        const Ticket ticket = to->leaving.front().ticket;
        transport.wait(ticket, patience);
        to->leaving.pop_front();
      }
      Letter& next = to->leaving.emplace_back(Letter{record, {}});
      next.ticket = transport.post_send(to->peer, {to->operation, 0, to->count++},
                                        std::as_bytes(std::span(&next.record, 1)));
    }
  }

  void hear(const Place& place, const Patience& patience) {
    // All that was told on this stream and not yet heard is compared, in order: the first
    // difference is the cause.
    if (place.from == nullptr) return;
    auto& arriving = place.from->arriving;
    while (!arriving.empty()) {
      transport.wait(arriving.front().letter.ticket, patience);
      const Expected next = arriving.front();
      arriving.pop_front();
      if (!next.letter.record.same(next.mine)) differ(place, next);
    }
  }

  [[noreturn]] void differ(const Place& place, const Expected& expected) {
    // The text of the other rank is not trusted to end.
    Record theirs = expected.letter.record;
    theirs.text[sizeof(theirs.text) - 1] = '\0';
    const Record& mine = expected.mine;
    std::string other = theirs.text;
    if (theirs.step != mine.step) other += fmt::format(" of step {}", theirs.step);
    const std::string text = fmt::format(
        "rank {} is at {} where rank {} is at {} (queue {}, meeting {} of step {})",
        place.from->peer, other, me, mine.text, names[place.queue], expected.meeting, mine.step);

    // The fault is kept, because other queues fail as a consequence and may be reported first.
    {
      const std::lock_guard lock(mutex);
      if (fault.empty()) fault = text;
    }
    throw Error(text);
  }

  void end(Ticket ticket, Deadline deadline) {
    try {
      transport.wait(ticket, deadline);
    } catch (const Error&) {  // nobody is left to hear of it
    }
  }
};

RollCall::RollCall(const Plan& plan, int rank, Transport& transport, Clock& clock,
                   const Operations& operations)
    : impl_(std::make_unique<Impl>(plan, rank, transport, clock, operations)) {}

RollCall::~RollCall() {
  // The transport reads and writes the letters until their waits end, so none may be freed before.
  const Deadline deadline = impl_->clock.after(kGrace);
  for (auto& [key, to] : impl_->told)
    for (Letter& letter : to.leaving) impl_->end(letter.ticket, deadline);
  for (auto& [key, from] : impl_->heard)
    for (Expected& expected : from.arriving) impl_->end(expected.letter.ticket, deadline);
}

void RollCall::tell(const Instruction& instruction, uint64_t step, const Patience& patience) {
  const auto found = impl_->places.find(instruction.id);
  if (found == impl_->places.end()) return;
  naming(instruction, step, [&] { impl_->tell(found->second, step, patience); });
}

void RollCall::hear(const Instruction& instruction, const Patience& patience) {
  const auto found = impl_->places.find(instruction.id);
  if (found == impl_->places.end()) return;
  const uint64_t step = impl_->turns[found->second.queue].step;
  naming(instruction, step, [&] { impl_->hear(found->second, patience); });
}

void RollCall::rethrow() const {
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->fault.empty()) throw Error(impl_->fault);
}

}  // namespace tutti
