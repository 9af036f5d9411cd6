// Ports of loopback; sockets of other processes, found, and shut from outside.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
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
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
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

inline Fd loopback_socket() { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// The first of so many ports of loopback in a row that nobody has, below those that the system
/// gives to connections.
inline int free_ports(int count) {
  for (int first = 12000 + ::getpid() % 15000;; first += count) {
    bool all = true;
    for (int port = first; port < first + count; ++port) {
      const Fd socket = loopback_socket();
      sockaddr_in address = loopback(port);
      all = all && ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    }
    if (all) return first;
  }
}

}  // namespace tutti::testing_support
