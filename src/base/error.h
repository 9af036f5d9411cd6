// The kinds of failure. A user's mistake is a ConfigError (all faults at once), a lost or silent
// peer is a CommError (recoverable), anything else that a run can meet is an Error. A broken
// promise inside the program aborts: TUTTI_CHECK.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti {

/// A failure whose message is fit for the user as it is: it needs no prefix and no stack.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Every fault of a job, listed at once. what() is the faults, one per line.
class ConfigError : public Error {
 public:
  explicit ConfigError(std::vector<std::string> faults);
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  std::vector<std::string> faults_;
};

/// Who failed to do what with whom. Recoverable: the state of a rank that throws it is whole.
struct CommFailure {
  int rank = -1;          ///< who noticed
  std::string operation;  ///< "reduce parcel 3", "barrier", ...
  int peer = -1;          ///< who was waited for; -1: nobody in particular
  /// The operation's number in its queue (for a plan's instruction: the step).
  uint64_t sequence = 0;
  std::chrono::nanoseconds waited{0};
  /// "timed out", "connection closed", "rank 1 (pid 77) was killed by signal 9"
  std::string reason;
};

class CommError : public Error {
 public:
  explicit CommError(CommFailure failure);
  const CommFailure& failure() const { return failure_; }

 private:
  CommFailure failure_;
};

/// Prints the message with its place and aborts.
[[noreturn]] void broken_promise(const char* file, int line, const std::string& message);

}  // namespace tutti

/// For what only a mistake in this program can cause. Never for what a user, a peer or a disk can.
#define TUTTI_CHECK(condition, ...)                                                          \
  do {                                                                                       \
    if (!(condition)) ::tutti::broken_promise(__FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
  } while (false)
