// Sockets of other processes: found, and shut from outside.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "base/file.h"

namespace tutti::testing_support {

/// Descriptors of a process that are sockets, by their inodes.
inline std::map<int, std::string> sockets_of(pid_t pid) {
  std::map<int, std::string> sockets;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone);
    if (target.starts_with("socket:["))
      sockets[std::stoi(entry.path().filename())] = target.substr(8, target.size() - 9);
  }
  return sockets;
}

/// Shuts every internet socket of a process down, from outside.
inline int cut_sockets(pid_t pid) {
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  int cut = 0;
  for (const auto& [number, inode] : sockets_of(pid)) {
    Fd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
    int domain = 0;
    socklen_t length = sizeof domain;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &length);
    if (domain == AF_INET && ::shutdown(socket.get(), SHUT_RDWR) == 0) ++cut;
  }
  return cut;
}

}  // namespace tutti::testing_support
