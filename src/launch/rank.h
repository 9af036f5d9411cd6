// One rank as it runs, in a process or a thread of its own: what its function gets, its heart, and
// how it ends.
#pragma once

#include <signal.h>

#include <functional>

#include "base/patience.h"
#include "launch/control.h"
#include "net/rendezvous/rendezvous.h"

namespace tutti {

/// What a rank's function gets. In an epoch of the run `rank`, `size` and `rendezvous` are those of
/// its members; `worker` is the number under which this rank was started.
struct RankContext {
  int rank = 0, size = 1;
  Clock& clock;
  Control& control;
  Rendezvous& rendezvous;
  int worker = 0;

  /// To be called once every rank is ready for its first step. A request to stop that comes before
  /// it ends the run at once.
  void begin() const { mine().begun.store(1); }
  /// Notes the time of a failure. Call it before what others wait for is torn down: who lost whom
  /// is told by it.
  void failing() const;
  /// What was noted is settled: this rank goes on.
  void recovered() const { mine().failed_at.store(0); }
  /// How long to wait for what may take others any time (reading data, evaluating, writing a
  /// checkpoint): as long as any rank gets on with its work. The wait gives up after `silence` in
  /// which none did.
  Patience while_working(Duration silence) const { return {clock, silence, signs()}; }
  /// Counts the signs of work of all ranks of the host.
  std::function<uint64_t()> signs() const {
    return [&control = control] { return control.signs(); };
  }

 private:
  Control::Rank& mine() const { return control.ranks()[static_cast<size_t>(worker)]; }
};

using RankFunction = std::function<void(RankContext&)>;

inline constexpr Duration kBeat = std::chrono::milliseconds(200);

/// How a rank ended: its exit code as a process.
enum RankEnd : int {
  kWell = 0,
  kFailed = 1,     ///< by itself
  kLostPeer = 2,   ///< which may be the cause
  kCancelled = 3,  ///< the launcher had cancelled it
};

/// Runs a rank's function with a heartbeat alongside, which also looks for the signals in
/// `requests`, by which this rank alone is asked to stop, whatever the function is doing. What the
/// function throws becomes a message in the control block.
/// `ranks_here`: how many of this process's threads are ranks.
RankEnd run_rank(RankContext& context, const RankFunction& body, const sigset_t& requests,
                 int ranks_here = 1);

/// The rest of a process that was forked to be a rank: takes its signals, runs the function, ends
/// the process. `mask`: the launcher's signal mask before it blocked any.
[[noreturn]] void become_rank(int rank, int ranks, Fd socket, Control& control, Clock& clock,
                              const sigset_t& mask, const RankFunction& body);

}  // namespace tutti
