// TensorBoard event files: protocol-buffer Events, each with a length and masked CRC-32Cs, as
// TensorFlow writes them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"

namespace tutti {

/// Makes FOLDER and in it the file events.out.tfevents.<seconds>.tutti, to which the sink appends a
/// record for every step, eval and test event, with a scalar for each of its numbers:
///   train/loss, train/lr, train/gradient_norm, train/tokens_per_second, ...
///   held_out/loss, held_out/<metric>, held_out/baseline
///   test/<metric>
/// What is nested deeper (per_class, confusion) is not written. A record is written at once, with
/// one write(2), so a killed process leaves whole records. Thread-safe. Throws Error naming the
/// file if it cannot be opened or written.
std::unique_ptr<EventSink> open_tensorboard(const std::string& folder);

/// CRC-32C (Castagnoli) of the bytes.
uint32_t crc32c(std::string_view bytes);

}  // namespace tutti
