// How one epoch of a trainer follows another.
//
//   1. plan      all workers plan the next epoch, spares too: what cannot be is refused here
//   2. settle    they tell each other at which step they are and how the last one was decided. A
//                step that anybody knows to be committed is finished by all: each has its part of
//                the sum, and the decision is copied. Copies are never more than one step apart,
//                since no step is decided without everybody's vote.
//   3. leave     connections and engine go; state stays where it is, in memory of the old plan
//   4. connect   the next members connect and take memory of the new plan
//   5. hand over who has what and who is to have what decide who sends what to whom, over a
//                connection of everybody that is closed again
//
// Until the end a worker keeps what it had of the state, so that another epoch can be entered when
// one of these fails.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "config/timeout.h"
#include "plan/ir/tags.h"
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
  // What every worker can refuse by itself comes before anybody waits for the others.
  TUTTI_CHECK(next.epoch > membership_.epoch, "epoch {} after epoch {}", next.epoch,
              membership_.epoch);
  if (layout.workers != worker_.job.layout.workers)
    throw ConfigError(
        {fmt::format("layout.workers = \"{}\" cannot follow \"{}\": the workers are "
                     "those that the run began with",
                     name_of(layout.workers), name_of(worker_.job.layout.workers))});
  const Membership all = everybody(next, worker_.context.worker);
  const std::unique_ptr<Rendezvous> meeting = worker_.context.rendezvous.among(all);

  // The number is used up from here on, whatever comes of it: what some have handed in for an epoch
  // that failed must not be taken for that of another one. Only where nobody goes on is it free
  // again: also those that merely leave make the plan, so a layout is refused by all of them.
  const uint32_t before = std::exchange(membership_.epoch, next.epoch);
  std::shared_ptr<const Plans> plan;
  try {
    plan = plan_epoch(worker_, job_in(worker_.job, layout, next), *meeting);
  } catch (const ConfigError&) {
    membership_.epoch = before;
    throw;
  }
  settle(*meeting);
  // One that was being written is complete or has failed; end_save() tells.
  if (saved_.valid()) saved_.wait();

  // The old plan's memory stays until all members of the next epoch have begun, but for what other
  // ranks read in it: they are here, too, so nobody is in a step any more.
  {
    const std::unique_ptr<EpochRun> last = std::move(run_);
    if (last != nullptr)
      if (const std::function<void()> copied = last->engine().copy_out()) copied();
  }
  worker_.context.recovered();

  // Members of the next epoch connect and take its memory; a spare only gives what it has.
  HeldState held;
  std::unique_ptr<EpochRun> run;
  if (next.takes_part()) {
    run = std::make_unique<EpochRun>(worker_, layout, next, wrap_, plan);
    held = run->make_state(/*fresh=*/false);
  }
  take_over(all, layout, *meeting, held);

  // The new state takes the old one's place only for good when all have begun. Until then the old
  // one is kept, from which another epoch could be entered.
  HeldState old = std::exchange(worker_.state, std::move(held));
  try {
    if (run != nullptr) run->begin();
    share_digests(next, *meeting);  // all have begun
  } catch (...) {
    run.reset();
    worker_.state = std::move(old);
    throw;
  }
  run_ = std::move(run);
  membership_ = next;
  finished_ = false;
  if (prepared_ && run_ != nullptr) prepare_saves();
}

/// Moves the values from where they are into the memory of the next epoch.
void Trainer::take_over(const Membership& all, const LayoutConfig& layout, Rendezvous& meeting,
                        const HeldState& held) {
  Job job = worker_.job;
  job.layout = layout;
  RankContext& context = worker_.context;

  // Those that only give wait here for those that take memory.
  meeting.exchange({}, context.while_working(timeout_of(job)));
  const std::unique_ptr<Transport> connection = connect_members(
      job, all, context, meeting, 0, 0, on_device(), context.while_working(timeout_of(job)));
  Channel channel(*connection, context.clock, kHandover, timeout_of(job), context.signs());

  std::vector<EntryShape> entries;
  for (const EntryPlace& place : entry_places(shape(), slots())) entries.push_back(place.shape);
  const std::vector<StatePiece> none;
  hand_over(entries, given_pieces(), held.units ? held.units->pieces() : none, channel);
  channel.barrier();  // nobody closes a connection that another one still reads from
  if (held.units) held.units->upload();
}

/// After it all workers are at the same step, with the same progress.
void Trainer::settle(Rendezvous& meeting) {
  // An epoch that could not be entered has left its members without a run, but with their state.
  const bool holds = worker_.state.units != nullptr;
  Decision mine = run_ != nullptr ? run_->engine().decided() : settled_;
  // The vote was seen here; what came after it may have been cut.
  if (left_ && mine.step == committed()) finish(mine);

  // Of all workers that hold state, who has come furthest says where everybody goes on.
  const Standing standing{worker_.progress, holds};
  const std::vector<Card> cards = meeting.exchange(
      {.bytes = to_bytes(standing, mine)}, worker_.context.while_working(timeout_of(worker_.job)));
  Standing first;
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

  // Whoever is behind has left the last step before its decision. A device's backend tells nothing
  // of decisions, and refuses to finish.
  if (holds && committed() < first.progress.step) {
    TUTTI_CHECK(left_ && committed() + 1 == first.progress.step &&
                    (on_device() || decision.step == committed()),
                "step {} here, {} elsewhere", committed(), first.progress.step);
    finish(decision);
  }
  worker_.progress = first.progress;
  settled_ = std::move(decision);
  left_ = false;
  if (run_ != nullptr) worker_.order_digest += run_->engine().order_digest();
}

/// What a spare has trained on is told of by the next epoch's first rank.
void Trainer::share_digests(const Membership& next, Rendezvous& meeting) {
  const uint64_t given = next.takes_part() ? 0 : worker_.order_digest;
  const std::vector<Card> cards = meeting.exchange(
      {.bytes = std::to_string(given)}, worker_.context.while_working(timeout_of(worker_.job)));
  worker_.order_digest -= given;
  if (next.rank != 0) return;
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
