// Scaling by statistics of the training records: what it gives, and that no number of ranks changes
// a bit of it.
#include "data/images/scaling.h"

#include <cmath>

#include "base/philox.h"
#include "data/core/sources.h"
#include "data/images/arrays.h"
#include "unit/data/files_case.h"

namespace tutti {
namespace {

using namespace files_case;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kSeed = 11;

template <typename T>
Array random_array(int64_t records, int64_t row, double scale) {
  std::vector<T> list(static_cast<size_t>(records * row));
  for (size_t i = 0; i < list.size(); ++i)
    list[i] = static_cast<T>(scale * (1 + philox_uniform({kSeed, Purpose::kTest, 0, 0}, i)));
  Array array;
  array.path = "memory";
  array.dims = {records, row};
  array.values = std::move(list);
  return array;
}

std::vector<int64_t> every_third(int64_t records) {
  std::vector<int64_t> some;
  for (int64_t i = 0; i < records; i += 3) some.push_back(i);
  return some;
}

/// Factors, shifts and lines of a group of so many ranks; all ranks must agree.
struct Found {
  std::vector<float> numbers;
  std::vector<std::string> lines;
  bool operator==(const Found&) const = default;
};
Found found_by(int ranks, const std::string& scale, const Array& array, int64_t channels,
               const std::vector<int64_t>& records) {
  std::vector<Found> all(static_cast<size_t>(ranks));
  over_group(ranks, [&](const DataGroup& group) {
    Found& mine = all[static_cast<size_t>(group.rank)];
    for (const Scaling& s : scaling_of(value_named<ValueScale>(scale).value(), array, channels,
                                       records, group, mine.lines))
      mine.numbers.insert(mine.numbers.end(), {s.factor, s.shift});
  });
  for (const Found& one : all) EXPECT_EQ(one, all[0]);
  return all[0];
}

TEST(Scaling, HasTheSameBitsForEveryNumberOfRanks) {
  const Array floats = random_array<float>(50, 12, 1e3), bytes = random_array<uint8_t>(50, 12, 100),
              whole = random_array<int64_t>(50, 12, 1e9);
  for (const Array* array : {&floats, &bytes, &whole}) {
    for (const char* scale : {"standardise", "min-max"}) {
      const Found expected = found_by(1, scale, *array, 3, every_third(50));
      EXPECT_EQ(expected.numbers.size(), 6u);
      EXPECT_EQ(expected.lines.size(), 3u);
      for (int ranks : {2, 3, 5, 20})
        EXPECT_EQ(found_by(ranks, scale, *array, 3, every_third(50)), expected);
    }
  }
}

TEST(Scaling, LooksAtTheTrainingRecordsAlone) {
  Array array = random_array<float>(9, 4, 1);
  const Found before = found_by(1, "standardise", array, 1, every_third(9));
  auto& list = std::get<std::vector<float>>(array.values);
  list[4] = 1e6F;  // of record 1
  EXPECT_EQ(found_by(1, "standardise", array, 1, every_third(9)), before);
  list[3 * 4] = 1e6F;
  EXPECT_NE(found_by(1, "standardise", array, 1, every_third(9)), before);
}

/// Mean and deviation of the scaled values of a channel.
std::pair<double, double> spread(const Array& array, int64_t channel, int64_t channels,
                                 const std::vector<Scaling>& scaling,
                                 const std::vector<int64_t>& records) {
  const auto data = make_arrays(std::make_shared<const Array>(array), nullptr, scaling);
  const int64_t row = array.row(), plane = row / channels;
  const auto tensors = allocate({{"features", {1, row}}});
  double sum = 0, squares = 0, n = 0;
  for (int64_t record : records) {
    data->read(record, tensors, 0);
    for (int64_t i = 0; i < plane; ++i) {
      const double value = tensors[0].const_data_ptr<float>()[channel * plane + i];
      sum += value, squares += value * value, n += 1;
    }
  }
  return {sum / n, std::sqrt(squares / n - sum / n * (sum / n))};
}

TEST(Scaling, StandardiseGivesMeanZeroAndDeviationOneByChannel) {
  const std::vector<int64_t> records = every_third(300);
  Array array = random_array<float>(300, 8, 10);
  auto& list = std::get<std::vector<float>>(array.values);
  for (size_t i = 0; i < list.size(); ++i)
    if (i % 8 >= 4) list[i] = list[i] * 50 - 7;  // the other channel
  std::vector<std::string> lines;
  const auto scaling = scaling_of(ValueScale::kStandardise, array, 2, records, {}, lines);
  ASSERT_EQ(scaling.size(), 2u);
  for (int64_t channel : {0, 1}) {
    const auto [mean, deviation] = spread(array, channel, 2, scaling, records);
    EXPECT_NEAR(mean, 0, 1e-5) << channel;  // float32 rounding of a shift of several deviations
    EXPECT_NEAR(deviation, 1, 1e-5) << channel;
  }
}

TEST(Scaling, MinMaxGivesZeroToOneAndUnitDividesBy255) {
  Array array = random_array<uint8_t>(4, 3, 1);
  array.values = std::vector<uint8_t>{10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 210};
  std::vector<std::string> lines;
  const auto shared = std::make_shared<const Array>(array);
  const std::vector<int64_t> all = {0, 1, 2, 3};
  const auto scaled = all_features(
      *make_arrays(shared, nullptr, scaling_of(ValueScale::kMinMax, array, 1, all, {}, lines)), 3);
  EXPECT_NEAR(scaled[0], 0, 1e-6);
  EXPECT_NEAR(scaled[11], 1, 1e-6);
  EXPECT_NEAR(scaled[9], 0.45, 1e-6);
  EXPECT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("from 10 to 210"), std::string::npos) << lines[0];
  const auto unit = all_features(
      *make_arrays(shared, nullptr, scaling_of(ValueScale::kUnit, array, 1, all, {}, lines)), 3);
  EXPECT_FLOAT_EQ(unit[4], 50.0F / 255);
  const auto none = all_features(
      *make_arrays(shared, nullptr, scaling_of(ValueScale::kNone, array, 1, all, {}, lines)), 3);
  EXPECT_EQ(none[4], 50);
}

TEST(Scaling, AConstantBecomesZeroAndNothingElse) {
  // the mean square of two of them is not their square
  for (float constant : {0.1F, 3.151F, 15.618F, -1e7F}) {
    Array array = random_array<float>(1000, 7, 1);
    array.values = std::vector<float>(7000, constant);
    std::vector<int64_t> all(1000);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    for (const char* scale : {"standardise", "min-max"}) {
      std::vector<std::string> lines;
      const auto scaling =
          scaling_of(value_named<ValueScale>(scale).value(), array, 1, all, {}, lines);
      EXPECT_EQ(scaling[0].factor, 1) << constant << " " << scale;
      const auto data = make_arrays(std::make_shared<const Array>(array), nullptr, scaling);
      EXPECT_EQ(all_features(*data, 7)[0], 0) << constant << " " << scale;
    }
  }
}

}  // namespace
}  // namespace tutti
