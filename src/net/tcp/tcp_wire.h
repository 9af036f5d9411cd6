// What tcp connections carry: a Hello and a Welcome, then pieces of messages. All numbers are
// little-endian, as on every machine that this runs on.
#pragma once

#include <bit>
#include <cstdint>

#include "net/transport.h"

namespace tutti {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kHelloMagic = 0x6f6c4854;
inline constexpr uint32_t kWelcomeMagic = 0x6d6f5754;
inline constexpr uint32_t kPieceMagic = 0x63655054;

/// The first bytes on a connection, from the rank that dialled. Without the run's token nothing
/// more is read.
struct Hello {
  uint32_t magic = kHelloMagic;
  uint32_t epoch = 0;
  uint64_t run = 0;
  uint64_t plan = 0;
  int32_t rank = -1;
  int32_t connection = -1;
};

/// The answer: this connection is admitted.
struct Welcome {
  uint32_t magic = kWelcomeMagic;
  int32_t rank = -1;
};

/// Precedes every piece of a message. The first piece of a message (offset 0) travels on connection
/// 0, so that messages begin in the order in which they were sent; the other pieces travel on any.
struct PieceHead {
  uint32_t magic = kPieceMagic;
  uint32_t epoch = 0;
  uint64_t run = 0;
  uint64_t plan = 0;
  Tag tag;
  uint64_t number = 0;  ///< of the message among those between the two ranks
  uint64_t size = 0;    ///< of the message
  uint64_t offset = 0;  ///< of the piece
  uint64_t length = 0;  ///< of the piece
};
static_assert(sizeof(Hello) == 32 && sizeof(Welcome) == 8 && sizeof(PieceHead) == 72);

}  // namespace tutti
