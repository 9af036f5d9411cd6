// The signals that ask the command to end: SIGINT (Ctrl-C), SIGTERM (a scheduler, `timeout`),
// SIGHUP (the terminal has closed). Who handles them depends on the time:
//   - a process that has made nothing yet ends at once (EndOnStop)
//   - a process that has something to put in order holds them (HeldStops) and takes them from a
//     signalfd
//   - helpers that it forks die of them
#pragma once

#include <signal.h>

#include <vector>

namespace tutti {

/// The stop signals that this process obeys. One that it was started to ignore (nohup, a background
/// job of a script) stays ignored.
std::vector<int> stop_signals();
/// The same signals as a set.
sigset_t stop_set();
/// "Ctrl-C", "SIGTERM", "SIGHUP (the terminal has closed)".
const char* stop_name(int signal);
/// The exit code of a command that a signal ended, as shells count.
inline int stop_code(int signal) { return 128 + signal; }
/// For a forked helper that has nothing to put in order: it dies of stop signals without a word.
void die_of_stop_signals();

/// While it lives, a stop signal says in one line that nothing was begun, and ends the process with
/// the signal's code.
class EndOnStop {
 public:
  EndOnStop();
  ~EndOnStop();
  EndOnStop(const EndOnStop&) = delete;
  EndOnStop& operator=(const EndOnStop&) = delete;

 private:
  std::vector<int> signals_;
};

/// While it lives, stop signals wait, also in children that are forked meanwhile. Those that
/// nobody took are dropped at the end: what they would have stopped is over. It blocks them for
/// the calling thread.
class HeldStops {
 public:
  HeldStops();
  ~HeldStops();
  HeldStops(const HeldStops&) = delete;
  HeldStops& operator=(const HeldStops&) = delete;

 private:
  sigset_t held_, before_;
};

}  // namespace tutti
