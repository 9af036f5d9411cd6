// The ranks' connection by NCCL, as device/group.h promises it. libnccl.so.2 comes with LibTorch
// and is opened at run time, so a host without it can still use its GPU with one rank.
#pragma once

#include <memory>
#include <string>

#include "base/wait.h"
#include "device/group.h"

namespace tutti {

/// NCCL's version, such as "2.28.9"; empty where there is no libnccl.so.2.
std::string nccl_version();

/// The id of a new group, made by one rank and given to all. The process that made it must live
/// until all have joined. `shares` is that of GroupOptions. Throws Error where NCCL is missing or
/// older than 2.18.
std::string nccl_group_id(bool shares);

/// Collective. Throws CommError (operation "nccl init") at the deadline, when cancelled, or when
/// NCCL finds a fault. Clock and cancel must outlive the group. While operations are put on a
/// stream the group waits at most as long as it could have waited here (NCCL connects two ranks at
/// their first message), and then throws CommError.
///
/// A captured step that holds operations of the group must be destroyed before the group is aborted
/// or destroyed: NCCL keeps a communicator for as long as a graph can launch it. abort() and the
/// destructor wait for that some seconds at most, then leave the communicator behind.
std::unique_ptr<DeviceGroup> join_nccl(Device& device, const GroupOptions& options, Clock& clock,
                                       Deadline deadline, const Cancel* cancel);

}  // namespace tutti
