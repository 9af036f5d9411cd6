// The words that transports share for their errors.
#include "net/failure.h"

namespace tutti {

std::string describe_message(bool send, Tag tag) {
  return fmt::format("{} of operation {} part {}", send ? "send" : "receive", tag.operation,
                     tag.part);
}

std::string describe_end(WaitResult result, const Cancel* cancel) {
  return result == WaitResult::kCancelled ? cancel->reason() : "timed out";
}

std::string describe_size_mismatch(size_t arrived, size_t expected) {
  return fmt::format("a message of {} bytes met a receive of {} bytes", arrived, expected);
}

}  // namespace tutti
