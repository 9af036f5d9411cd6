// `tutti doctor`: what this host offers, what it measures, and what is missing with the command
// that mends it.
#pragma once

namespace tutti {

/// Prints the report, as JSON where asked for; returns 0 when jobs can be trained on the CPU here,
/// else 1. Takes some seconds; a driver that hangs ends its part of the report, not the command. To
/// be called before this process has threads.
int doctor_command(bool json);

}  // namespace tutti
