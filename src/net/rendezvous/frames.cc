// A frame on the socket is a head and its bytes. Its descriptors are attached to the first byte of
// the head (SCM_RIGHTS), so they have arrived once the head has.
#include "net/rendezvous/frames.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace tutti {

namespace {

constexpr uint32_t kMagic = 0x54545246;
// No card comes near these. They end a stream that has lost its frames before it makes this process
// take memory.
constexpr size_t kMaxFds = 64;
constexpr uint32_t kMaxGroup = 1 << 20;
constexpr uint64_t kMaxBytes = uint64_t{1} << 32;

// A call that a signal interrupted counts as well: the socket is still ready, so whoever waits for
// it comes back at once.
bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// The descriptors that came with a message. They are owned from here on, whatever becomes of the
// frame.
void take_fds(msghdr& message, std::vector<Fd>& fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

FrameProgress FrameReader::read(int socket, Frame& frame) {
  while (true) {
    // The head comes first, then the group, then the bytes.
    const bool in_head = have_ < sizeof(Head);
    const size_t group_end = sizeof(Head) + head_.group;
    const bool in_group = !in_head && have_ < group_end;
    const size_t want = in_head    ? sizeof(Head) - have_
                        : in_group ? group_end - have_
                                   : group_end + head_.bytes - have_;

    // The frame is complete. One call fills one frame: the caller asks for the next when it has
    // dealt with this one.
    if (!in_head && !in_group && want == 0) {
      if (partial_.fds.size() != head_.fds) {
        errno = EMFILE;  // the one reason for which the system drops descriptors that were sent
        throw_errno("take", "a descriptor that was sent");
      }
      partial_.kind = head_.kind;
      partial_.rank = head_.rank;
      frame = std::move(partial_);
      partial_ = Frame{};
      have_ = 0;
      return FrameProgress::kMore;
    }

    // Exactly what is missing is read, never a byte of the next frame: its descriptors would be
    // taken for those of this one.
    iovec part{};
    part.iov_base = in_head    ? reinterpret_cast<char*>(&head_) + have_
                    : in_group ? partial_.group.data() + (have_ - sizeof(Head))
                               : partial_.bytes.data() + (have_ - group_end);
    part.iov_len = want;
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);

    // Descriptors are closed in programs that this process executes.
    const ssize_t n = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) {
      if (would_block()) return FrameProgress::kBlocked;
      return FrameProgress::kClosed;
    }
    if (n == 0) return FrameProgress::kClosed;
    take_fds(message, partial_.fds);
    have_ += static_cast<size_t>(n);

    // The head is checked before memory is taken for what it announces.
    if (in_head && have_ == sizeof(Head)) {
      if (head_.magic != kMagic || head_.fds > kMaxFds || head_.group > kMaxGroup ||
          head_.bytes > kMaxBytes) {
        throw Error("rendezvous: what arrived is no frame");
      }
      partial_.group.resize(head_.group);
      partial_.bytes.resize(head_.bytes);
    }
  }
}

FrameProgress FrameWriter::write(int socket) {
  while (!queue_.empty()) {
    const Frame& frame = *queue_.front();
    TUTTI_CHECK(frame.fds.size() <= kMaxFds, "{} descriptors in one card", frame.fds.size());
    FrameReader::Head head{kMagic,
                           frame.kind,
                           frame.rank,
                           static_cast<uint32_t>(frame.fds.size()),
                           static_cast<uint32_t>(frame.group.size()),
                           frame.bytes.size()};

    // One call sends head, group and bytes from where they are.
    iovec parts[3] = {{&head, sizeof(head)},
                      {const_cast<char*>(frame.group.data()), frame.group.size()},
                      {const_cast<char*>(frame.bytes.data()), frame.bytes.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 3;

    // Descriptors travel with the first byte of their frame, so only once.
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
    if (done_ == 0 && !frame.fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(frame.fds.size() * sizeof(int));
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(frame.fds.size() * sizeof(int));
      for (size_t i = 0; i < frame.fds.size(); ++i) {
        const int fd = frame.fds[i].get();
        std::memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(int));
      }
    }

    // What an earlier call has sent already is skipped.
    size_t skip = done_;
    for (iovec& part : parts) {
      const size_t n = std::min(skip, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + n;
      part.iov_len -= n;
      skip -= n;
    }

    // Of a frame that the socket does not take whole, the rest follows in a later call. A reader
    // that is gone is an answer and no SIGPIPE, which would end this process.
    const ssize_t n = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return would_block() ? FrameProgress::kBlocked : FrameProgress::kClosed;
    done_ += static_cast<size_t>(n);
    if (done_ == sizeof(head) + frame.group.size() + frame.bytes.size()) {
      queue_.pop_front();
      done_ = 0;
    }
  }
  return FrameProgress::kMore;
}

}  // namespace tutti
