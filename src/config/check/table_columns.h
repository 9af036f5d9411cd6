// data.columns: the columns of a table that are read and what each becomes. Written "name: role
// option...":
//   "age: number standardise"          a feature; also min-max, or neither; log: of log(1 + x)
//   "city: category hash=64"           an id by hash below 64
//   "colour: category red|green|blue"  an id by place; any other value is an unknown class
//   "shape: one-hot round|square"      as many features of 0 and 1
//   "weight: weight"                   of the record, for data.resample = "column"
//   "label: target"                    a number (regression, bce)
//   "label: target cat|dog"            a class by place; target classes=10: a whole number below 10
//   "body: text"                       jsonl: text for a gpt; then the only column
// Sizes follow from the text alone, so a model can be made before the data is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/enums.h"

namespace tutti {

struct Column {
  enum class Role { kNumber, kCategory, kOneHot, kWeight, kTarget, kText };
  std::string name;
  Role role = Role::kNumber;
  ValueScale scale = ValueScale::kNone;  ///< never kUnit
  bool log = false;
  int64_t size = 0;     ///< of a category, one-hot or class target; 0: a number
  bool hashed = false;  ///< category
  /// the named values; empty: hashed, or a whole number below size
  std::vector<std::string> values;
};

template <>
inline constexpr EnumName<Column::Role> kNamesOf<Column::Role>[] = {
    {Column::Role::kNumber, "number"},  {Column::Role::kCategory, "category"},
    {Column::Role::kOneHot, "one-hot"}, {Column::Role::kWeight, "weight"},
    {Column::Role::kTarget, "target"},  {Column::Role::kText, "text"}};

/// Every fault is added to `faults`, naming the text and, for a word that is none, the nearest.
std::vector<Column> parse_columns(const std::vector<std::string>& texts,
                                  std::vector<std::string>& faults);

/// What the columns add up to.
struct ColumnSizes {
  int64_t numbers = 0;              ///< number and one-hot features
  std::vector<int64_t> categories;  ///< of each category column
  int64_t classes = 0;              ///< of the target; 0: it is a number
  int64_t targets = 0, weights = 0, texts = 0;
};
ColumnSizes sizes_of(const std::vector<Column>& columns);

}  // namespace tutti
