// Threads that move messages beside threads that compute, on the same cores.
#pragma once

namespace tutti {

/// The calling thread, which works for moments, runs as soon as it is woken, ahead of one that
/// computes. Linux 6.12 and later; elsewhere it waits for the end of the other's turn
/// (milliseconds), as ever.
void wake_promptly();

}  // namespace tutti
