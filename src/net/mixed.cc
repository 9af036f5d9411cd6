// Both halves number their tickets by themselves, so the highest bit tells them apart. A failure of
// one half breaks the other: the contract knows only one transport, which fails as a whole.
#include "net/mixed.h"

#include "base/error.h"

namespace tutti {

namespace {

// marks the tickets of the tcp half; shm counts never get that far
constexpr uint64_t kByTcp = uint64_t{1} << 63;

class Mixed final : public Transport {
 public:
  Mixed(std::vector<int> hosts, std::unique_ptr<Streamed> shm, std::unique_ptr<Streamed> tcp)
      : hosts_(std::move(hosts)), shm_(std::move(shm)), tcp_(std::move(tcp)) {}

  int rank() const override { return shm_->rank(); }
  int size() const override { return shm_->size(); }
  std::string name() const override { return "shm+tcp"; }

  Ticket post_send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    return mark(peer, of(peer).post_send(peer, tag, bytes));
  }
  Ticket post_recv(int peer, Tag tag, std::span<std::byte> bytes) override {
    return mark(peer, of(peer).post_recv(peer, tag, bytes));
  }
  void wait(Ticket ticket, Patience patience) override {
    const bool by_tcp = ticket.id & kByTcp;
    guarded([&] { (by_tcp ? *tcp_ : *shm_).wait({ticket.id & ~kByTcp}, std::move(patience)); });
  }

  std::span<std::byte> window() override { return shm_->window(); }
  std::shared_ptr<Window> held_window() override { return shm_->held_window(); }
  std::span<const std::byte> window_of(int peer) const override { return shm_->window_of(peer); }
  void raise(int index, uint64_t value) override { shm_->raise(index, value); }
  void await(int peer, int index, uint64_t value, Patience patience,
             std::string_view what) override {
    guarded([&] { shm_->await(peer, index, value, std::move(patience), what); });
  }

  void leave() override {
    shm_->leave();
    tcp_->leave();
  }

  uint64_t sent_bytes(int peer) const override { return of(peer).sent_bytes(peer); }
  uint64_t dropped() const override { return shm_->dropped() + tcp_->dropped(); }

 private:
  Streamed& of(int peer) const { return hosts_[peer] == hosts_[rank()] ? *shm_ : *tcp_; }
  Ticket mark(int peer, Ticket ticket) const {
    return {&of(peer) == tcp_.get() ? ticket.id | kByTcp : ticket.id};
  }

  /// Runs a wait of one half. If it fails, both halves give back their spans, since the caller is
  /// free to reuse all of them after a throw.
  template <typename F>
  void guarded(F&& body) {
    try {
      body();
    } catch (const CommError& e) {
      shm_->release_spans(e.failure().reason);
      tcp_->release_spans(e.failure().reason);
      throw;
    }
  }

  const std::vector<int> hosts_;
  const std::unique_ptr<Streamed> shm_, tcp_;
};

}  // namespace

std::unique_ptr<Transport> make_mixed(std::vector<int> hosts, std::unique_ptr<Streamed> shm,
                                      std::unique_ptr<Streamed> tcp) {
  return std::make_unique<Mixed>(std::move(hosts), std::move(shm), std::move(tcp));
}

}  // namespace tutti
