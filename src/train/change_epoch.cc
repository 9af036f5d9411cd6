// How one epoch of a trainer follows another.
//
//   1. settle    the members of both epochs tell each other at which step they are and how the last
//                one was decided. A step that anybody knows to be committed is finished by all:
//                each has its part of the sum, and the decision is copied. Copies are never more
//                than one step apart, since no step is decided without everybody's vote.
//   2. leave     connections and engine go; state stays where it is, in memory of the old plan
//   3. connect   the next members plan, connect and take memory of the new plan
//   4. hand over who has what and who is to have what decide who sends what to whom, over a
//                connection of everybody that is closed again
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "engine/channels.h"
#include "train/trainer.h"

namespace tutti {

namespace {

/// What a worker tells the others when an epoch ends.
struct Standing {
  Progress progress;
  bool holds_state = false;
};
static_assert(std::is_trivially_copyable_v<Standing>);

std::string to_bytes(const Standing& standing, const Decision& decision) {
  std::string bytes(reinterpret_cast<const char*>(&standing), sizeof standing);
  bytes.append(reinterpret_cast<const char*>(&decision.step), sizeof decision.step);
  return bytes + decision.vote;
}

void from_bytes(const std::string& bytes, Standing& standing, Decision& decision) {
  TUTTI_CHECK(bytes.size() >= sizeof standing + sizeof decision.step, "a standing of {} bytes",
              bytes.size());
  std::memcpy(&standing, bytes.data(), sizeof standing);
  std::memcpy(&decision.step, bytes.data() + sizeof standing, sizeof decision.step);
  decision.vote = bytes.substr(sizeof standing + sizeof decision.step);
}

}  // namespace

void Trainer::enter(const Membership& next, const LayoutConfig& layout) {
  const Membership both = joint(membership_, next, worker_.context.worker);
  if (!both.takes_part()) {  // a spare stays one
    membership_ = next;
    return;
  }
  const std::unique_ptr<Rendezvous> everybody = worker_.context.rendezvous.among(both);
  settle(*everybody);

  // The old plan's memory stays until its values are taken over, but for what other ranks read in
  // it: they are here, too, so nobody is in a step any more.
  std::vector<StatePiece> given = given_pieces();
  if (run_ != nullptr) {
    if (const std::function<void()> copied = run_->engine().copy_out()) copied();
    run_.reset();
  }
  membership_ = next;
  left_ = finished_ = false;
  worker_.context.recovered();

  HeldState made;
  if (next.takes_part()) {
    run_ = std::make_unique<EpochRun>(worker_, layout, next, wrap_);
    made = run_->make_state(/*fresh=*/false);
  }

  // Everybody's connection is closed when the state is where it belongs. Those that only give wait
  // here for those that plan.
  {
    Job job = worker_.job;
    job.layout = layout;
    RankContext& context = worker_.context;
    take_over_digests(everybody->exchange({.bytes = std::to_string(given_digest())},
                                          context.while_working(timeout_of(job))));
    const std::unique_ptr<Transport> connection = connect_members(
        job, both, context, *everybody, 0, 0, on_device(), context.clock.after(timeout_of(job)));
    Channel channel(*connection, context.clock, kHandover, timeout_of(job));
    std::vector<EntryShape> entries;
    for (const EntryPlace& place : entry_places(shape(), slots())) entries.push_back(place.shape);
    const std::vector<StatePiece> none;
    hand_over(entries, given, made.units ? made.units->pieces() : none, channel);
    channel.barrier();  // nobody closes a connection that another one still reads from
  }
  if (made.units) made.units->upload();
  worker_.state = std::move(made);
  if (run_ != nullptr) run_->begin();
}

/// After it all workers are at the same step, with the same progress.
void Trainer::settle(Rendezvous& everybody) {
  Decision mine = run_ != nullptr ? run_->engine().decided() : Decision{};
  // The vote was seen here; what came after it may have been cut.
  if (left_ && mine.step == committed()) finish(mine);

  const Standing standing{worker_.progress, run_ != nullptr};
  const std::vector<Card> cards = everybody.exchange(
      {.bytes = to_bytes(standing, mine)}, worker_.context.while_working(timeout_of(worker_.job)));
  Standing first;  // who has come furthest
  Decision decision;
  for (const Card& card : cards) {
    Standing its;
    Decision its_decision;
    from_bytes(card.bytes, its, its_decision);
    if (!its.holds_state || (first.holds_state && its.progress.step <= first.progress.step))
      continue;
    first = its;
    decision = std::move(its_decision);
  }
  if (run_ != nullptr && committed() < first.progress.step) {
    TUTTI_CHECK(left_ && committed() + 1 == first.progress.step && decision.step == committed(),
                "step {} here, {} elsewhere", committed(), first.progress.step);
    finish(decision);
  }
  worker_.progress = first.progress;
  if (run_ != nullptr) worker_.order_digest += run_->engine().order_digest();
}

/// What a spare has trained on is told of by the next epoch's first rank.
uint64_t Trainer::given_digest() {
  return membership_.takes_part() ? 0 : std::exchange(worker_.order_digest, 0);
}

void Trainer::take_over_digests(const std::vector<Card>& cards) {
  if (membership_.rank != 0) return;
  for (const Card& card : cards) worker_.order_digest += std::stoull(card.bytes);
}

/// The rest of the step that was left.
void Trainer::finish(const Decision& decision) {
  run_->engine().finish(request_after(worker_.job, worker_.progress), decision);
  worker_.progress = next_progress(worker_.job, worker_.progress, true);
  finished_ = true;
}

/// What this worker can hand over of the state. Copies of what others update are old where the step
/// was finished here: they would have come with the next Gather.
std::vector<StatePiece> Trainer::given_pieces() const {
  if (worker_.state.units == nullptr) return {};
  return finished_ ? units().updated_pieces() : units().pieces();
}

}  // namespace tutti
