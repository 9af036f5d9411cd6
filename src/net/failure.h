// How all transports word their failures: the same fault reads the same, whichever transport met
// it.
#pragma once

#include <string>

#include "base/error.h"
#include "base/wait.h"
#include "net/transport.h"

namespace tutti {

/// How an error calls a message: "receive of operation 7 part 2".
std::string describe_message(bool send, Tag tag);

/// Why a wait that did not become ready ended.
std::string describe_end(WaitResult result, const Cancel* cancel);

/// Why a receive of `expected` bytes cannot take a message of `arrived` bytes.
std::string describe_size_mismatch(size_t arrived, size_t expected);

}  // namespace tutti
