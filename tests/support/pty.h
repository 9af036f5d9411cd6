// A real terminal for a command: a pty of a given width, whose other end is read all the while.
#pragma once

#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <thread>

#include "base/file.h"

namespace tutti::testing_support {

class Pty {
 public:
  explicit Pty(int columns) {
    int master = -1, slave = -1;
    if (::openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) throw_errno("open", "a pty");
    master_ = Fd(master);
    slave_ = Fd(slave);
    ::fcntl(master, F_SETFD, FD_CLOEXEC);
    ::fcntl(slave, F_SETFD, FD_CLOEXEC);
    resize(columns);
    reader_ = std::thread([this] {
      char part[4096];
      for (ssize_t n = 0; (n = ::read(master_.get(), part, sizeof part)) > 0;) {
        const std::lock_guard lock(mutex_);
        text_.append(part, static_cast<size_t>(n));
      }
    });
  }
  ~Pty() { (void)text(); }

  void resize(int columns) const {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ::ioctl(master_.get(), TIOCSWINSZ, &size);
  }
  /// The terminal as a file.
  std::string name() const { return ::ptsname(master_.get()); }
  /// In the child: its stdout is the terminal.
  void attach() const { ::dup2(slave_.get(), STDOUT_FILENO); }
  std::string so_far() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  /// All that was written, once every process has closed its end.
  const std::string& text() {
    slave_.reset();
    if (reader_.joinable()) reader_.join();
    return text_;
  }

 private:
  Fd master_, slave_;
  mutable std::mutex mutex_;
  std::string text_;
  std::thread reader_;
};

}  // namespace tutti::testing_support
