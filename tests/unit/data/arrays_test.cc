#include "data/images/arrays.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tutti {
namespace {

TEST(Arrays, BytesOfRecordsOfAnySizeAreReadAsTheyLie) {
  for (const int64_t bytes : {1, 63, 64, 65, 130, 2048}) {
    std::vector<uint8_t> values(static_cast<size_t>(50 * bytes));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
    const auto data = make_arrays(std::make_shared<Array>(Array{"memory", {50, bytes}, values}),
                                  nullptr, {Scaling{}});
    const std::vector<at::Tensor> tensors = allocate({{"bytes", {8, bytes}, at::kByte}});
    const std::vector<int64_t> records = {49, 0, 7, 7, 31};
    data->read_rows(records, tensors, 2);
    for (size_t r = 0; r < records.size(); ++r) {
      const auto* row =
          tensors[0].const_data_ptr<uint8_t>() + (2 + static_cast<int64_t>(r)) * bytes;
      EXPECT_TRUE(std::equal(row, row + bytes, values.data() + records[r] * bytes))
          << bytes << " row " << r;
    }
  }
}

}  // namespace
}  // namespace tutti
