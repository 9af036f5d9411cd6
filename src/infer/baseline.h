// What a model's held-out loss is compared with: losses that cost nothing to reach.
#pragma once

#include "data/core/dataset.h"

namespace tutti {

/// Mean cross-entropy, in nats, of a byte bigram model (add-one) over the held-out records'
/// targets, counted on the first 2^18 training records. Throws Error if one of the two parts has no
/// records, or has values that are not bytes.
double bigram_loss(const Dataset& train, const Dataset& held_out, int64_t context);

}  // namespace tutti
