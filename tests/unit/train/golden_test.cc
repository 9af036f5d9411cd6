// Every code path that this processor can run gives the pinned bits.
#include "train/golden.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/processor.h"

namespace tutti {
namespace {

TEST(Golden, EveryCodePathGivesThePinnedBits) {
  for (const CodePath path : runnable_paths()) {
    for (const Golden& one : golden(path))
      EXPECT_EQ(one.digest, one.expected)
          << fmt::format("{} on {}: 0x{:016x}", one.kernels, name_of(path), one.digest);
    check_golden(path);
  }
}

}  // namespace
}  // namespace tutti
