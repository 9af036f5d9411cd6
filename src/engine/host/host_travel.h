// All that moves between ranks on the host's cores, or to and from the second tier: what Reduce,
// Gather, Exchange, Send, Recv, Fetch and Evict mean there. What travels is said by the plan;
// before ranks meet they make sure that they mean the same (comm/roll_call.h).
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "comm/exchange.h"
#include "comm/pulls.h"
#include "comm/roll_call.h"
#include "engine/parts.h"
#include "engine/station.h"
#include "exec/executor.h"

namespace tutti {

/// Whether every rank's window can be read.
bool reaches_all(const Transport& transport);
/// Bytes that the rank's transfers hold for messages, in addition to the program's buffers.
int64_t message_bytes(const Plan& plan, int rank, bool windows);

/// What moves in one of a rank's two programs, that of steps or that of evaluation.
class HostTravel {
 public:
  /// All arguments must outlive it.
  HostTravel(const EngineParts& parts, const Station& station, Which which);

  /// Handlers of what travels.
  void set(Handlers& on);
  /// Everything that is called from here on belongs to this step.
  void begin(int64_t step) { step_ = step; }
  /// The roll call of what meets elsewhere: tells now, and hears when what is returned is called.
  std::function<void()> meet(const Instruction& i) { return call_roll(i); }
  /// Runs the Gathers that come after an Update, as if there had been one. Collective.
  void refresh();
  /// Throws what the roll call has found, if it has, where a transfer has failed.
  void rethrow() const { roll_call_.rethrow(); }

 private:
  void prepare(const Instruction& i, std::span<std::byte> scratch);
  void prepare_reduce(const Instruction& i, std::span<std::byte> scratch);
  void prepare_gather(const Instruction& i);
  void gather(const Instruction& i, uint64_t run);
  void exchange(const Instruction& i, uint64_t run);
  void message(const Instruction& i, uint64_t run);
  void fetch_or_evict(const Instruction& i);
  /// Tells what this rank is about to do; what is returned hears whether the others do the same,
  /// and throws if not.
  std::function<void()> call_roll(const Instruction& i);
  std::byte* memory(int buffer) const { return p_.state.memory->of(which_, buffer); }
  float* floats(int buffer) const { return reinterpret_cast<float*>(memory(buffer)); }
  /// In a step everybody has something to do at the same time. Before an evaluation's micro-batch a
  /// rank may read data for as long as it takes.
  Patience patience() const {
    if (which_ == Which::kEvaluation) return p_.context.while_working(timeout_);
    return p_.context.clock.after(timeout_);
  }

  const EngineParts& p_;
  const Station& station_;
  const Which which_;
  const Plan& plan_;
  const Program& program_;
  const Duration timeout_;
  const bool windows_;  // every rank's can be read
  Arena scratch_;       // of reduces
  RollCall roll_call_;
  std::unordered_map<uint32_t, std::unique_ptr<SumPull>> sums_;
  std::unordered_map<uint32_t, std::unique_ptr<CopyPull>> copies_;
  std::unordered_map<uint32_t, std::unique_ptr<ColumnExchange>> exchanges_;
  std::set<uint32_t> refreshes_;            // gathers after the Updates
  std::set<std::pair<int, int>> gathered_;  // (parcel, group) of gathers before it
  // gathers that wait for nobody: one of the step has waited before
  std::set<uint32_t> repeats_;
  int64_t step_ = 0;
};

}  // namespace tutti
