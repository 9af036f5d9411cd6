#include <gtest/gtest.h>
#include "net/make.h"
#include "support/forked_ranks.h"
namespace tutti {
TEST(Smoke, Inproc) {
  testing_support::expect_all_well(true, 3, [](int rank, Rendezvous& rv) {
    SystemClock clock;
    auto t = make_transport({.kind = "inproc", .window_bytes = 4096}, {1, 2, 3}, rv, clock, nullptr, clock.after(std::chrono::seconds(5)));
    int out = rank, in = -1;
    auto s = t->post_send((rank + 1) % 3, {1, 0, 0}, std::as_bytes(std::span(&out, 1)));
    auto r = t->post_recv((rank + 2) % 3, {1, 0, 0}, std::as_writable_bytes(std::span(&in, 1)));
    t->wait(s, clock.after(std::chrono::seconds(5)));
    t->wait(r, clock.after(std::chrono::seconds(5)));
    EXPECT_EQ(in, (rank + 2) % 3);
  });
}
TEST(Smoke, ForkedRendezvous) {
  testing_support::expect_all_well(false, 3, [](int rank, Rendezvous& rv) {
    SystemClock clock;
    for (int k = 0; k < 3; ++k) {
      auto deck = rv.exchange({.bytes = std::to_string(rank + k), .fds = {1, 2}}, clock.after(std::chrono::seconds(5)));
      for (int r = 0; r < 3; ++r) { EXPECT_EQ(deck[r].bytes, std::to_string(r + k)); EXPECT_EQ(deck[r].fds.size(), 2u); }
    }
  });
}
}
