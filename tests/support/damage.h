// Damage to files, drawn from a seed.
#pragma once

#include <cstdint>
#include <string>

#include "base/philox.h"

namespace tutti::testing_support {

/// Random bytes, or `whole` with some bits and bytes changed, cut out, doubled or cut off.
inline std::string mutated(const std::string& whole, uint64_t seed, uint64_t round) {
  const PhiloxKey key{.seed = seed, .purpose = Purpose::kTest, .a = round, .b = 0};
  uint64_t draw = 0;
  const auto below = [&](uint64_t n) { return philox_below(key, draw++, n); };
  if (below(8) == 0) {
    std::string noise(below(200), '\0');
    for (char& c : noise) c = static_cast<char>(below(256));
    return noise;
  }
  static const std::string kTelling = std::string("\",\n\r\t{}[]:\\0e-.n\xff\xef", 19) + '\0';
  std::string text = whole;
  for (uint64_t changes = 1 + below(6); changes > 0 && !text.empty(); --changes) {
    const size_t at = below(text.size());
    switch (below(6)) {
      case 0:
        text[at] = kTelling[below(kTelling.size())];
        break;
      case 1:
        text.insert(at, 1, kTelling[below(kTelling.size())]);
        break;
      case 2:
        text.erase(at, 1 + below(8));
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), below(30)));
        break;
      case 4:
        text[at] = static_cast<char>(text[at] ^ 1 << below(8));
        break;
      default:
        if (below(4) == 0) text.resize(at);
        break;
    }
  }
  return text;
}

}  // namespace tutti::testing_support
