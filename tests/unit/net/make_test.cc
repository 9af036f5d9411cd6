// What is refused before anything of a transport is made.
#include "net/make.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace tutti {
namespace {

/// Stands for many ranks that all say what this one says.
class Echo final : public Rendezvous {
 public:
  explicit Echo(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::vector<Card> exchange(const Card& mine, Patience) override {
    return std::vector<Card>(static_cast<size_t>(size_), mine);
  }
  std::unique_ptr<Rendezvous> among(const Membership&) override { return nullptr; }

 private:
  const int size_;
};

TEST(MakeTransport, RefusesRanksWhoseRingsTogetherAreMoreThanTheHostHas) {
  // Of each no more than 400 MiB, but of all of them 6 TiB.
  Echo rendezvous(20000);
  SystemClock clock;
  try {
    make_transport({.kind = "shm", .window_bytes = 4096}, {1, 1, 1}, rendezvous, clock, nullptr,
                   clock.after(std::chrono::seconds(20)));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what())
                    .starts_with("windows and rings of this host: cannot allocate 5.97 TiB"))
        << error.what();
  }
}

}  // namespace
}  // namespace tutti
