// What was measured of a machine, for the cost model (plan/search/cost.h). `tutti calibrate`
// writes it into a small JSON file; a machine that was never measured gets default rates, whose
// source says so.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/enums.h"

namespace tutti {

/// Bytes per second and rank, when one rank is at work and when every core has one.
struct Rates {
  double alone = 0, all = 0;
  bool operator==(const Rates&) const = default;
};

/// Seconds from a send to its arrival, for one size.
struct MessageSample {
  int64_t bytes = 0;
  double seconds = 0;
  bool operator==(const MessageSample&) const = default;
};
struct TransportRates {
  std::vector<MessageSample> messages;  ///< ascending by size, at least one
  /// Seconds from raising a window's flag until another rank sees it; 0: no windows.
  double flag = 0;
  bool operator==(const TransportRates&) const = default;
};

/// In place of a transport's name: between hosts, which one machine cannot measure.
inline constexpr const char* kNetwork = "network";

struct Calibration {
  std::string source;          ///< the file; "default" without one
  bool measured = false;       ///< else all rates are assumed
  int cores = 1;               ///< of the machine: ranks of one host share them
  std::vector<double> matmul;  ///< FLOP/s of each rank when 1, 2, ... `cores` ranks compute
  /// Bytes read and written per second: by copies, sums of arrays, optimizer updates.
  Rates copy, fold, update;
  /// Bytes per second to and from offloaded values: in a file or, for a GPU, in the host's memory.
  double tier = 0;
  /// By name: every transport between ranks of one host or between GPUs, and kNetwork.
  std::map<std::string, TransportRates> transports;
  /// Throws Error naming a transport that has none.
  const TransportRates& rates_of(const std::string& transport) const;
  bool operator==(const Calibration&) const = default;
};

/// For machines that were never measured: a CPU host with so many cores, or one GPU per rank, whose
/// matmuls are in float32 or (`narrow`) in 16 bits.
Calibration default_calibration(DeviceKind device, int cores, bool narrow = false);
/// $XDG_CACHE_HOME/tutti/calibration.json, else ~/.cache/tutti/calibration.json.
std::string calibration_path();
std::string to_json(const Calibration& calibration);
/// Throws Error naming `source` and what is wrong with it.
Calibration parse_calibration(const std::string& text, const std::string& source);
/// The file's rates, or the CPU's defaults if there is no file. GPUs have no such files.
Calibration load_calibration(const std::string& path, int cores);

/// Seconds of one message: on the line between the two nearest samples; beyond the last one, in
/// proportion to it.
double message_seconds(const TransportRates& rates, double bytes);

}  // namespace tutti
