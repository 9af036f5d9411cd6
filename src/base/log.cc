// Events are appended (O_APPEND), each by one write under a lock.
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace tutti {

namespace {

class EventFile final : public EventSink {
 public:
  explicit EventFile(const std::string& path)
      : path_(path), fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
    if (!fd_) throw_errno("open", path_);
  }

  void write(const nlohmann::json& event) override {
    // Bytes that are no UTF-8 are replaced: an event must not fail for a name in it.
    const std::string line =
        event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";

    std::lock_guard lock(mutex_);
    ssize_t n;
    do n = ::write(fd_.get(), line.data(), line.size());
    while (n < 0 && errno == EINTR);
    if (n < 0) throw_errno("write", path_);
    if (static_cast<size_t>(n) == line.size()) return;

    // The disk became full within the line: the part that was written is taken back, so that the
    // file still ends with a whole line.
    const off_t end = lseek(fd_.get(), 0, SEEK_CUR);
    if (end >= n && ftruncate(fd_.get(), end - n) != 0) throw_errno("truncate", path_);
    errno = ENOSPC;
    throw_errno("write", path_);
  }

 private:
  std::string path_;
  Fd fd_;
  std::mutex mutex_;
};

}  // namespace

std::unique_ptr<EventSink> open_event_file(const std::string& path) {
  return std::make_unique<EventFile>(path);
}

}  // namespace tutti
