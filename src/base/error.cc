// Messages of failures, and the end of a program that broke a promise.
#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace tutti {

namespace {

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

std::string describe(const CommFailure& f) {
  std::string text = fmt::format("rank {}: {} #{}", f.rank, f.operation, f.sequence);
  if (f.peer >= 0) text += fmt::format(" with rank {}", f.peer);
  return text + fmt::format(": {} (waited {:.3f} s)", f.reason,
                            std::chrono::duration<double>(f.waited).count());
}

}  // namespace

ConfigError::ConfigError(std::vector<std::string> faults)
    : Error(join_lines(faults)), faults_(std::move(faults)) {}

CommError::CommError(CommFailure failure)
    : Error(describe(failure)), failure_(std::move(failure)) {}

void broken_promise(const char* file, int line, const std::string& message) {
  fmt::print(stderr, "tutti: broken promise at {}:{}: {}\n", file, line, message);

  // abort() flushes nothing.
  std::fflush(stderr);
  std::abort();
}

}  // namespace tutti
