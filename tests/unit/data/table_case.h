// What the tests of tables share: a plain configuration, faults as texts, mutated files.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "data/table.h"

namespace tutti::table_case {

inline constexpr int32_t kRomeBelow8 = 6;

inline DataConfig plain() {
  DataConfig config{};
  config.delimiter = "auto";
  config.header = true;
  config.missing = "fail";
  config.outliers = "keep";
  config.outlier_limit = 6;
  config.bad = "fail";
  config.resample = "none";
  return config;
}

inline std::vector<Column> columns_of(const std::vector<std::string>& texts) {
  std::vector<std::string> faults;
  std::vector<Column> columns = parse_columns(texts, faults);
  EXPECT_EQ(faults, std::vector<std::string>{});
  return columns;
}

template <typename Call>
std::string fault(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no fault";
}

/// Random bytes, or `whole` with some bytes changed, cut out, doubled or cut off.
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
    switch (below(5)) {
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
      default:
        if (below(4) == 0) text.resize(at);
        break;
    }
  }
  return text;
}

}  // namespace tutti::table_case
