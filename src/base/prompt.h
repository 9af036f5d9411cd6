// For threads that move messages on the same cores as threads that compute.
#pragma once

namespace tutti {

/// From here on the calling thread, which works only for moments at a time, runs as soon as it is
/// woken, ahead of one that computes. Needs Linux 6.12 or later; elsewhere nothing changes, and it
/// waits for the end of the other's turn (milliseconds).
void wake_promptly();

}  // namespace tutti
