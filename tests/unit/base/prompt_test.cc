#include "base/prompt.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>

namespace tutti {

namespace {

/// Of the calling thread, in nanoseconds: the sixth field of the kernel's structure, 24 bytes from
/// its start.
uint64_t turn() {
  std::array<char, 48> attributes{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, attributes.data(), attributes.size(), 0), 0);
  uint64_t runtime = 0;
  std::memcpy(&runtime, attributes.data() + 24, sizeof runtime);
  return runtime;
}

bool kernel_has_turns() {
  utsname name{};
  int major = 0, minor = 0;
  EXPECT_EQ(uname(&name), 0);
  EXPECT_EQ(std::sscanf(name.release, "%d.%d", &major, &minor), 2);
  return major > 6 || (major == 6 && minor >= 12);
}

}  // namespace

TEST(Prompt, AThreadAsksForAShortTurnForItselfAlone) {
  const uint64_t before = turn();
  uint64_t in_thread = 0;
  std::thread([&] {
    wake_promptly();
    in_thread = turn();
  }).join();
  if (kernel_has_turns()) {
    EXPECT_EQ(in_thread, 100'000u);
    EXPECT_LT(in_thread, before);
  }
  EXPECT_EQ(turn(), before);
}

}  // namespace tutti
