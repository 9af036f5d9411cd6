// TensorBoard event files: records of protocol-buffer Events behind lengths and masked CRC-32C, as TensorFlow writes them.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"

namespace tutti {

/// Writes FOLDER/events.out.tfevents.<seconds>.tutti and appends a scalar for every number of the step and eval events:
/// train/loss, train/lr, train/gradient_norm, train/tokens_per_second, held_out/<metric>, test/<metric>. Flushed after
/// every eval and at least every second.
std::unique_ptr<EventSink> open_tensorboard(const std::string& folder);

}  // namespace tutti
