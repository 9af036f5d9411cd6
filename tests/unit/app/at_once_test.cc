#include "app/at_once.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <system_error>

namespace tutti {
namespace {

TEST(AtOnce, AllRunTogether) {
  std::barrier meeting(3);
  std::atomic<int> sum{0};
  at_once(3, [&](int t) {
    meeting.arrive_and_wait();
    sum += 1 << t;
  });
  EXPECT_EQ(sum, 7);
}

TEST(AtOnce, WhereNotAllCanBeStartedNoneRuns) {
  /// Work that not every thread can be made with: its copies run out.
  struct Work {
    int& left;
    std::atomic<int>& ran;
    Work(int& copies, std::atomic<int>& runs) : left(copies), ran(runs) {}
    Work(const Work& other) : left(other.left), ran(other.ran) {
      if (left-- == 0)
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    void operator()(int) const { ++ran; }
  };
  int left = 100;
  std::atomic<int> ran{0};
  const std::function<void(int)> work{Work(left, ran)};
  left = 3;
  EXPECT_THROW(at_once(3, work), std::system_error);
  EXPECT_EQ(ran, 0);
}

}  // namespace
}  // namespace tutti
