// Apart from SHA-256, which needs OpenSSL.
#include "base/hash.h"

namespace tutti {

uint64_t hash64(std::string_view text) {
  // The offset basis and the prime of FNV-1a.
  uint64_t h = 0xcbf29ce484222325u;
  for (char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3u;

  // FNV's high bits hardly depend on the last letters; this spreads them.
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdu;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53u;
  return h ^ (h >> 33);
}

}  // namespace tutti
