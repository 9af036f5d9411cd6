// A rank's function runs on one thread and its heart on another. The heart beats, looks for
// signals, and counts beats in which the process got on with its work.
#include "launch/rank.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "base/stop_signals.h"
#include "base/text/message.h"

namespace tutti {

namespace {

/// Takes one of the signals that wait for this process.
bool took(const sigset_t& signals) {
  const timespec now{};
  return ::sigtimedwait(&signals, nullptr, &now) > 0;
}

/// What the process has done so far, in a number that grows while it computes, reads or writes.
/// That is what "gets on with its work" means for code that knows nothing of ranks: a user's data
/// set, a library that writes a file.
///
/// Ranks that are threads share what is measured. A process in which all of them only wait must
/// not look busy, so the least that counts grows with their number.
class WorkMeter {
 public:
  explicit WorkMeter(int ranks_here)
      : least_(least(int64_t{ranks_here - 1} * kWaitingMicroseconds)) {}

  /// Whether there was work since the last look, more than a heart and a wait take.
  bool moved() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const int64_t cpu = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * int64_t{1'000'000} +
                        usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    const int64_t blocks = usage.ru_inblock + usage.ru_oublock;
    const bool worked = cpu - cpu_ >= least_ || blocks != blocks_;
    cpu_ = cpu;
    blocks_ = blocks;
    return worked;
  }

 private:
  // Per beat: 1 % of a core counts as work. A rank whose threads only wait takes a tenth of it.
  static constexpr int64_t kLeastMicroseconds = 2000, kWaitingMicroseconds = 200;
  // What further ranks take that wait does not count, nor as much again, in case that is a low
  // guess; but no more than a quarter of a core, so that one rank that computes among very many
  // still counts.
  static constexpr int64_t least(int64_t waiting) {
    const auto sure = std::chrono::duration_cast<std::chrono::microseconds>(kBeat / 4).count();
    return waiting + std::min<int64_t>(kLeastMicroseconds + waiting, sure);
  }
  const int64_t least_;
  int64_t cpu_ = 0, blocks_ = 0;
};

/// In a rank's process. A terminal sends SIGINT and SIGHUP to the whole group, and the launcher
/// decides. SIGTERM may be meant for this rank alone: it stays blocked, and the heart takes it.
/// Returns what it is to look for.
sigset_t take_stop_signals(const sigset_t& old_mask) {
  sigset_t requests, mask = old_mask;
  sigemptyset(&requests);
  for (int signal : stop_signals()) {
    if (signal == SIGTERM) sigaddset(&requests, signal);
    if (signal != SIGTERM) std::signal(signal, SIG_IGN);
    signal == SIGTERM ? sigaddset(&mask, signal) : sigdelset(&mask, signal);
  }
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  return requests;
}

/// Calls the body; when an exception leaves it, notes when at the latest that was.
void call(RankContext& context, const RankFunction& body) {
  try {
    body(context);
  } catch (...) {
    context.failing();
    throw;
  }
}

}  // namespace

void RankContext::failing() const {
  int64_t never = 0;
  mine().failed_at.compare_exchange_strong(never, clock.now().time_since_epoch().count());
}

RankEnd run_rank(RankContext& context, const RankFunction& body, const sigset_t& requests,
                 int ranks_here) {
  Control::Rank& me = context.control.ranks()[static_cast<size_t>(context.worker)];
  Signal wake;
  std::atomic<bool> ended{false};
  std::thread heart([&] {
    WorkMeter work(ranks_here);
    auto over = [&] { return ended.load(); };
    do {
      me.beats.fetch_add(1);
      if (work.moved()) me.signs.fetch_add(1);
      if (took(requests)) me.asked.store(1);
    } while (context.clock.wait(wake, over, context.clock.after(kBeat), nullptr) !=
             WaitResult::kReady);
  });

  RankEnd end = kWell;
  std::string message;
  try {
    call(context, body);
  } catch (const CommError& e) {
    message = e.what();
    end = kLostPeer;
  } catch (const std::exception& e) {
    message = message_of(e);
    end = kFailed;
  }
  // A wait that ended because of the cancel has nothing to say that the launcher does not know.
  const Cancel& cancel = context.control.cancel;
  if (end != kWell && cancel.cancelled() && message.find(cancel.reason()) != std::string::npos)
    end = kCancelled;
  std::snprintf(me.message, sizeof me.message, "%s", message.c_str());
  me.done.store(1);
  ended.store(true);
  context.clock.notify(wake);
  heart.join();
  return end;
}

void become_rank(int rank, int ranks, Fd socket, Control& control, Clock& clock,
                 const sigset_t& mask, const RankFunction& body) {
  const sigset_t requests = take_stop_signals(mask);
  // A write beyond ulimit -f then fails with a reason and a path.
  std::signal(SIGXFSZ, SIG_IGN);
  RankEnd end = kFailed;
  try {
    auto rendezvous =
        make_process_rendezvous(rank, ranks, std::move(socket), clock, &control.cancel);
    RankContext context{rank, ranks, clock, control, *rendezvous, rank};
    end = run_rank(context, body, requests);
  } catch (const std::exception& e) {  // what it runs in could not be made
    Control::Rank& me = control.ranks()[static_cast<size_t>(rank)];
    std::snprintf(me.message, sizeof me.message, "rank %d: %s", rank, e.what());
  }
  std::fflush(nullptr);
  ::_exit(end);
}

}  // namespace tutti
