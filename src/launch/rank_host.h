// The process of a host that loads what ranks need, once, and forks them. It is a program that the
// launcher executes, so a launcher needs neither the model nor LibTorch, and 64 ranks take hardly
// longer to start than one.
//
//   launcher                                 rank host
//   executes it with a socket  ------------> loads its libraries, reads its arguments
//                              <------------ ready: what the launcher has to know of the run
//   control block, a task and
//   a socket for every rank    ------------> forks the ranks, before it has computed anything
//                              <------------ their process ids; it ends
//
// When it has ended its ranks are the launcher's own children: it watches them, and they die with
// it, as if it had forked them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/patience.h"
#include "launch/control.h"
#include "launch/rank.h"

namespace tutti {

/// The launcher's side.
class RankHost {
 public:
  /// Executes `program` with these arguments (the first is its name). Stop signals that the caller
  /// holds are not held there. It is given up, here and below, when neither it nor a process that
  /// it started has done anything for `silence`. Throws Error when it cannot.
  RankHost(const std::string& program, const std::vector<std::string>& arguments,
           Duration silence = std::chrono::minutes(2));
  /// Ends the process if it is still there.
  ~RankHost();
  RankHost(const RankHost&) = delete;
  RankHost& operator=(const RankHost&) = delete;

  /// Waits for what the program says when it is ready. None: it has ended by itself, and said why;
  /// its exit code is code(). A stop signal that comes meanwhile is handed on to the program, which
  /// ends of it. Throws Error when it does nothing any more.
  std::optional<std::string> ready();
  int code() const { return code_; }
  /// The signal that ended it before it could say anything; 0: none did.
  int killed_by() const { return killed_by_; }
  /// Has it fork a rank for every socket; `kept` are descriptors that the ranks hold on to as long
  /// as they live. Returns the ranks' process ids once they are children of this process. Throws
  /// Error when ranks could not be started, or when a stop signal comes meanwhile, which the caller
  /// holds and can take afterwards: then the host has ended, and no rank will find the others.
  std::vector<pid_t> fork_ranks(const SharedControl& control, std::vector<Fd> sockets,
                                const std::vector<int>& kept, const std::string& task);

 private:
  void finish();
  Patience while_host_works(const Clock& clock) const;
  const Duration silence_;
  pid_t pid_ = -1;  // -1: it has ended
  Fd socket_;
  int code_ = 0, killed_by_ = 0;
};

/// The program's side.
class HostedProgram {
 public:
  /// The program's side of the launcher that executed this process as a rank host; none if nobody
  /// did. It is asked for once, at the program's start, and does not return if that launcher has
  /// ended.
  static std::optional<HostedProgram> inherited();
  /// Whether inherited() would find one. It does not return if the launcher has ended, either.
  static bool is_hosted();

  /// Sends the launcher what ready() returns there.
  void ready(const std::string& text);
  /// Forks the ranks that the launcher asks for and ends the process; `rank` is what each of them
  /// does, with the launcher's task. Nothing may have computed before, so the process must still
  /// have a single thread. The launcher hears why ranks could not be forked, as where it has more.
  [[noreturn]] void serve(const std::function<void(RankContext&, const std::string& task)>& rank);

 private:
  HostedProgram(Fd socket, pid_t launcher) : socket_(std::move(socket)), launcher_(launcher) {}
  void fork_ranks(const std::function<void(RankContext&, const std::string& task)>& rank);
  Fd socket_;
  pid_t launcher_;
};

}  // namespace tutti
