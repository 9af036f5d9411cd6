// Frames of bytes and descriptors over a unix stream socket, for the rendezvous of processes.
// Nothing here blocks: reader and writer keep what is half done until the socket is ready again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"

namespace tutti {

struct Frame {
  uint32_t kind = 0;
  int32_t rank = -1;
  std::string group;  ///< whom it concerns (rendezvous_frames.h)
  std::string bytes;
  std::vector<Fd> fds;
};

enum class FrameProgress { kMore, kBlocked, kClosed };

class FrameReader {
 public:
  /// kMore: `frame` was filled. kBlocked: wait for the socket. kClosed: the other end is gone.
  /// Throws Error when what arrives is no frame, or descriptors were lost.
  FrameProgress read(int socket, Frame& frame);

 private:
  struct Head {
    uint32_t magic, kind;
    int32_t rank;
    uint32_t fds;
    uint32_t group;  // bytes of it; they come first
    uint64_t bytes;
  };
  friend class FrameWriter;
  Head head_{};
  size_t have_ = 0;  // of the head, then of head, group and bytes
  Frame partial_;
};

class FrameWriter {
 public:
  void push(std::shared_ptr<const Frame> frame) { queue_.push_back(std::move(frame)); }
  /// kMore: everything is written.
  FrameProgress write(int socket);

 private:
  std::deque<std::shared_ptr<const Frame>> queue_;
  size_t done_ = 0;  // of the first frame's head, group and bytes
};

}  // namespace tutti
