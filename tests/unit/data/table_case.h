// What the tests of tables share: a plain configuration, faults as texts, mutated files.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tables/table.h"
#include "support/damage.h"

namespace tutti::table_case {

inline constexpr int32_t kRomeBelow8 = 6;

inline DataConfig plain() {
  DataConfig config{};
  config.delimiter = "auto";
  config.header = true;
  config.missing = MissingValue::kFail;
  config.outliers = Outliers::kKeep;
  config.outlier_limit = 6;
  config.bad = BadRecord::kFail;
  config.resample = Resample::kNone;
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

using testing_support::mutated;

}  // namespace tutti::table_case
