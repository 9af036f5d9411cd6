// A Gather: an all-gather of ranges. A rank reads the windows that it can reach, and gets what it
// cannot read as messages from those who hold it. All lists are made once, at the start.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/posted.h"
#include "comm/pulls.h"

namespace tutti {

struct CopyPull::Impl {
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  struct Message {
    int peer;
    // its number among the copies of the transfer, which both sides know
    uint32_t part;
    std::span<std::byte> bytes;  // of a send: only read
  };
  struct Giver {
    int rank;
    std::vector<Piece> pieces;
  };

  const CopyTransfer& transfer;
  const TransferName name;
  Transport& transport;
  int me;
  int flag;
  bool read = false;          // others read my window
  std::vector<Giver> givers;  // whose windows I read; my own first
  std::vector<Message> receives, sends;

  Impl(const CopyTransfer& t, TransferName called, Transport& net, std::span<std::byte> arena,
       const std::function<std::byte*(int)>& memory)
      : transfer(t),
        name(std::move(called)),
        transport(net),
        me(net.rank()),
        flag(flag_of(name.parcel, transfer.updated ? kUpdatedReady : kCopyReady)) {
    TUTTI_CHECK(name.parcel >= 0 && name.parcel < kFlaggedParcels, "{}: no flags left for it",
                name.text);

    // Every rank walks all copies of the transfer, which numbers them alike for all, and keeps
    // those that it takes part in.
    for (size_t c = 0; c < transfer.copies.size(); ++c)
      prepare(transfer.copies[c], static_cast<uint32_t>(c), arena, memory);
    TUTTI_CHECK(!read || arena.data() == transport.window().data(),
                "{}: the arena is not the window that the others read", name.text);
    // Everybody begins with another rank, so that no window is the first one for all.
    const int ranks = transport.size();
    std::sort(givers.begin(), givers.end(), [&](const Giver& a, const Giver& b) {
      return (a.rank - me + ranks) % ranks < (b.rank - me + ranks) % ranks;
    });
  }

  void prepare(const CopyTransfer::Copy& copy, uint32_t part, std::span<std::byte> arena,
               const std::function<std::byte*(int)>& memory_at) {
    if (copy.bytes == 0 || (copy.from != me && copy.to != me)) return;
    const auto bytes = static_cast<size_t>(copy.bytes);
    const auto inside = [&](std::span<const std::byte> memory) {
      TUTTI_CHECK(copy.offset >= 0 && copy.offset + bytes <= memory.size(),
                  "{}: what rank {} holds ends outside its window", name.text, copy.from);
    };

    // I hold what another rank is to have: it reads it in my window, or I send it.
    if (copy.to != me) {
      inside(arena);
      if (transport.window_of(copy.to).empty()) {
        sends.push_back({copy.to, part, arena.subspan(copy.offset, bytes)});
      } else {
        read = true;
      }
      return;
    }

    // I am to have it: from my own arena, from a window, or from a message straight to its place.
    std::byte* target = memory_at(copy.buffer);
    const std::span<const std::byte> memory =
        copy.from == me ? arena : transport.window_of(copy.from);
    if (memory.empty()) {
      receives.push_back({copy.from, part, {target + copy.at, bytes}});
      return;
    }
    inside(memory);

    // Pieces are grouped by giver, so that each giver is waited for once.
    const auto same = [&](const Giver& giver) { return giver.rank == copy.from; };
    auto giver = std::find_if(givers.begin(), givers.end(), same);
    if (giver == givers.end()) giver = givers.insert(givers.end(), {copy.from, {}});
    giver->pieces.push_back({memory.data() + copy.offset, target + copy.at, bytes});
  }

  void run(uint64_t step, const Patience& patience, const std::function<void()>& begun) {
    // Receives first, then what others wait for; only after that does this rank wait for anybody.
    Posted arriving(transport), leaving(transport);
    for (const Message& m : receives) arriving.recv(m.peer, Tag{name.id, m.part, step}, m.bytes);
    if (read) transport.raise(flag, step + 1);
    for (const Message& m : sends) leaving.send(m.peer, Tag{name.id, m.part, step}, m.bytes);
    if (begun) begun();

    // Windows are read while messages travel. A rank's own pieces may be in place already.
    for (const Giver& giver : givers) {
      if (giver.rank != me) transport.await(giver.rank, flag, step + 1, patience, name.text);
      for (const Piece& piece : giver.pieces) {
        if (piece.from != piece.to) std::memcpy(piece.to, piece.from, piece.bytes);
      }
    }
    arriving.wait_all(patience);
    leaving.wait_all(patience);
  }
};

CopyPull::CopyPull(const CopyTransfer& transfer, TransferName name, Transport& transport,
                   std::span<std::byte> arena, const std::function<std::byte*(int)>& memory)
    : impl_(std::make_unique<Impl>(transfer, std::move(name), transport, arena, memory)) {}
CopyPull::~CopyPull() = default;

void CopyPull::run(uint64_t step, const Patience& patience, const std::function<void()>& begun) {
  named(impl_->name.text, step, [&] { impl_->run(step, patience, begun); });
}

}  // namespace tutti
