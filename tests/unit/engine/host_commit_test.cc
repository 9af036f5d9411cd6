// The vote on the host: it is given when nothing reads the values any more that come with it.
#include "engine/host/host_commit.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/transports.h"

namespace tutti {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

TEST(HostCommit, NoVoteIsGivenWhileTheStateIsBeingCopied) {
  over({"inproc", "inproc", true, false}, 2, [](TestRank& me) {
    ThreadRendezvous rendezvous(1, me.clock, nullptr);
    const auto view = rendezvous.view(0);
    SharedControl control(2);
    RankContext context{me.rank, 2, me.clock, *control, *view, me.rank};
    Channel channel(me.transport, me.clock, kDataChannel, std::chrono::seconds(20));
    Saving saving;
    TrainConfig train{};
    HostCommit commit(train, context, channel, saving, 1);

    // One rank still copies; the other one waits for its vote.
    saving.writing = me.rank == 1;
    saving.copying = me.rank == 1;
    std::atomic<bool> begun{false}, voted{false};
    std::thread step([&] {
      const StepVerdict verdict = commit.run({}, [&] {
        begun = true;
        commit.vote([] {});
      });
      EXPECT_TRUE(verdict.saving);
      EXPECT_FALSE(verdict.stop);
      voted = true;
    });
    if (me.rank == 1) {
      const Deadline while_it_copies = me.clock.after(std::chrono::milliseconds(50));
      while (!begun || !me.clock.passed(while_it_copies)) std::this_thread::yield();
      EXPECT_FALSE(voted);
      saving.copying = false;
      saving.copying.notify_all();
    }
    step.join();
    EXPECT_TRUE(voted);
  });
}

}  // namespace
}  // namespace tutti
