#include "base/pages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace tutti {

TEST(Pages, ValuesStayAsTheyAreOnHugePagesWhateverTheSize) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1} << 16, (size_t{9} << 20) / 8 + 3}) {
    std::vector<uint64_t> values(size), expected(size);
    std::iota(values.begin(), values.end(), 7);
    std::iota(expected.begin(), expected.end(), 7);
    move_to_huge_pages(values.data(), values.size() * sizeof(uint64_t));
    EXPECT_EQ(values, expected);
  }
}

}  // namespace tutti
