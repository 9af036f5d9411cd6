// What `tutti doctor` says of the host apart from its GPUs.
#pragma once

#include <cstdint>
#include <string>

#include "base/code_path.h"

namespace tutti {

struct HostReport {
  std::string processor;                                   ///< its name
  int cores_online = 1, cores_by_affinity = 1, cores = 1;  ///< cores: this process may use
  CodePath path = CodePath::kPortable;                     ///< the fastest
  int64_t memory = 0, memory_available = 0;                ///< bytes
  int64_t memory_limit = 0;                                ///< of control groups; = memory: none
  /// what the installed one calls itself; empty: it does not say
  std::string torch_version;
  std::string torch_built;  ///< what this command was built with
  std::string torch_folder;
  std::string runs_folder;  ///< where runs go, or would be made
  int64_t disk_free = 0;
  bool runs_writable = false;
  int64_t shm_size = 0;                       ///< of /dev/shm; 0: there is none
  int64_t open_files = 0, locked_memory = 0;  ///< limits of this process; -1: none
  double matmul_flops = 0;                    ///< a core's, per second
  double copy_bytes = 0;                      ///< read and written by all cores, per second
};

/// Reads what the system says. Quick; nothing of ATen is called.
HostReport look_at_host();
/// Adds the measured rates, in about a second. Starts threads.
void measure_host(HostReport& report);

}  // namespace tutti
