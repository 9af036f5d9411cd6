#include "data/pages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace tutti {
namespace {

TEST(Pages, AdviceLeavesTheValuesAsTheyAreWhateverTheSize) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1} << 16, (size_t{9} << 20) / 8 + 3}) {
    std::vector<uint64_t> values(size), expected(size);
    std::iota(values.begin(), values.end(), 7);
    std::iota(expected.begin(), expected.end(), 7);
    use_huge_pages(values.data(), values.size() * sizeof(uint64_t));
    EXPECT_EQ(values, expected);
  }
}

}  // namespace
}  // namespace tutti
