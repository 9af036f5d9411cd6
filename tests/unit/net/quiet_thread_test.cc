#include "net/quiet_thread.h"

#include <gtest/gtest.h>

#include <system_error>

namespace tutti {
namespace {

bool blocks_signals() {
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return ::sigismember(&mask, SIGINT) == 1;
}

TEST(QuietThread, TakesNoSignalsAndItsMakerGoesOnTakingThem) {
  bool quiet = false;
  start_quiet_thread([&] { quiet = blocks_signals(); }).join();
  EXPECT_TRUE(quiet);
  EXPECT_FALSE(blocks_signals());
}

TEST(QuietThread, ThatCannotBeMadeLeavesItsMakerTakingSignals) {
  /// Fails where std::thread copies it.
  struct Body {
    Body() = default;
    Body(const Body&) {
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    void operator()() const {}
  };
  const Body body;
  EXPECT_THROW(start_quiet_thread(body), std::system_error);
  EXPECT_FALSE(blocks_signals());
}

}  // namespace
}  // namespace tutti
