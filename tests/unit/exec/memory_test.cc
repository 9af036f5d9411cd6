#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <thread>
#include <vector>

#include "base/error.h"
#include "exec/accounts.h"
#include "exec/tier.h"

namespace tutti {

TEST(FileTier, ThatHasNoRoomSaysForHowMuchHoweverLittleItIs) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limit{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::string said;
  try {
    const FileTier tier(testing::TempDir(), 12 << 10);
  } catch (const Error& error) {
    said = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(said,
            "offloaded values: no room for 12 KiB in " + testing::TempDir() + ": File too large");
}

TEST(Accounts, RememberThePeakPerKindAndOfTheSum) {
  Accounts accounts;
  accounts.add(BufferKind::kSaved, 100);
  accounts.add(BufferKind::kSaved, -60);
  accounts.add(BufferKind::kWork, 70);
  EXPECT_EQ(accounts.current(BufferKind::kSaved), 40);
  EXPECT_EQ(accounts.peak(BufferKind::kSaved), 100);
  EXPECT_EQ(accounts.peak(BufferKind::kWork), 70);
  EXPECT_EQ(accounts.peak_total(), 110);
  accounts.reset_peaks();
  EXPECT_EQ(accounts.peak(BufferKind::kSaved), 40);
  EXPECT_EQ(accounts.peak_total(), 110);
}

TEST(Accounts, CountFromManyThreads) {
  Accounts accounts;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&accounts] {
      for (int i = 0; i < 10000; ++i) accounts.add(BufferKind::kData, 3);
      for (int i = 0; i < 10000; ++i) accounts.add(BufferKind::kData, -2);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(accounts.current(BufferKind::kData), 40000);
  EXPECT_GE(accounts.peak(BufferKind::kData), 40000);
  EXPECT_LE(accounts.peak(BufferKind::kData), 120000);
}

TEST(Arena, GivesAlignedZeroedMemoryAndAccountsForWhatIsTaken) {
  Accounts accounts;
  {
    Arena arena(BufferKind::kGradient, 4000, accounts);
    EXPECT_EQ(accounts.current(BufferKind::kGradient), 0);
    const auto first = arena.take(1), second = arena.take(257);
    const auto floats = arena.take_floats(10);
    for (const void* p : {static_cast<void*>(first.data()), static_cast<void*>(second.data()),
                          static_cast<void*>(floats.data())}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 256, 0u);
    }
    EXPECT_EQ(second.data() - first.data(), 256);
    EXPECT_EQ(floats.size(), 10u);
    EXPECT_EQ(floats[9], 0.0f);
    EXPECT_EQ(accounts.current(BufferKind::kGradient), 256 + 512 + 256);
    EXPECT_EQ(arena.left(), 4000u - 1024u);
  }
  EXPECT_EQ(accounts.current(BufferKind::kGradient), 0);
  EXPECT_EQ(accounts.peak(BufferKind::kGradient), 1024);
}

TEST(Arena, CanBeTakenToItsLastByte) {
  Accounts accounts;
  Arena arena(BufferKind::kWork, 100, accounts);
  EXPECT_EQ(arena.take(100).size(), 100u);
  EXPECT_EQ(arena.left(), 0u);
  EXPECT_EQ(accounts.current(BufferKind::kWork), 100);
}

TEST(Arena, MemoryThatIsNotToBeHadIsAnErrorNamingTheKind) {
  Accounts accounts;
  try {
    Arena arena(BufferKind::kMoment, size_t{1} << 60, accounts);
    FAIL() << "an exabyte was given";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("moment"), std::string::npos) << e.what();
  }
  EXPECT_EQ(accounts.current(BufferKind::kMoment), 0);
}

TEST(Arena, TakingMoreThanIsLeftIsAnErrorAndTakesNothing) {
  Accounts accounts;
  Arena arena(BufferKind::kSaved, 128, accounts);
  arena.take(100);
  EXPECT_THROW(arena.take(1), Error);
  EXPECT_EQ(accounts.current(BufferKind::kSaved), 128);
  EXPECT_TRUE(arena.take(0).empty());
}

TEST(Arena, OverForeignMemoryIsAccountedButNotGivenBack) {
  Accounts accounts;
  alignas(256) std::byte memory[256];
  {
    Arena arena(BufferKind::kGradient, memory, accounts);
    EXPECT_EQ(arena.take(200).data(), memory);
    EXPECT_EQ(accounts.current(BufferKind::kGradient), 256);
  }
  memory[0] = std::byte{1};
  EXPECT_EQ(accounts.current(BufferKind::kGradient), 0);
}

TEST(Arena, OfNothingIsEmpty) {
  Accounts accounts;
  Arena arena(BufferKind::kWork, 0, accounts);
  EXPECT_TRUE(arena.take_floats(0).empty());
  EXPECT_THROW(arena.take(1), Error);
}

}  // namespace tutti
