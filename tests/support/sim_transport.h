// A simulated network under the test scheduler: it keeps the contract of net/transport.h, with
// delays drawn from a seed and faults where a test puts them, and records what happened in the
// scheduler's log.
//
//   message  number n from rank a to rank b takes a time drawn from (seed, a, b, n); those of equal
//            tag stay in order
//   send     is done when its message arrives, so nothing is buffered as far as the sender can see
//   strict   a send whose bytes change before it is done aborts the test; a posted receive is
//            filled with garbage
//
// A cut loses what is in flight from and to the rank, and every wait for it fails at that moment.
// Copies of a message and messages of another epoch reach the receiver's door and are turned away
// there, as a real transport must.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "net/failure.h"
#include "net/transport.h"
#include "support/test_scheduler.h"

namespace tutti::test {

struct Fault {
  enum class Kind { kDrop, kDelay, kDuplicate, kForeignEpoch };
  Kind kind = Kind::kDrop;
  int from = 0, to = 1;
  uint64_t number = 0;  ///< the message from -> to it befalls, counted from 0
  Duration delay{0};    ///< kDelay: on top of the drawn one
};

struct SimOptions {
  int ranks = 2;
  uint64_t seed = 0;
  Duration least = std::chrono::microseconds(1), most = std::chrono::microseconds(100);
  Epoch epoch{.run = 1, .epoch = 1, .plan = 1};
  std::vector<Fault> faults;
  size_t window_bytes = 0;  ///< of every rank; 0: none, as over tcp
};

class SimNetwork {
 public:
  SimNetwork(TestScheduler& scheduler, SimOptions options, const Cancel* cancel)
      : scheduler_(scheduler), options_(std::move(options)), cancel_(cancel) {
    for (int r = 0; r < options_.ranks; ++r) ranks_.push_back(std::make_unique<Rank>(options_));
  }

  /// The network must outlive its transports.
  std::unique_ptr<Transport> transport(int rank);

  /// From `at` on the rank is unreachable.
  void cut(int rank, Time at) {
    std::lock_guard lock(mutex_);
    ranks_[rank]->cut = at;
    changed_all();
  }
  uint64_t duplicates() const { return duplicates_; }

 private:
  friend class SimTransport;
  struct Message {
    std::vector<std::byte> bytes;
    Epoch epoch;
    uint64_t number = 0;
    Time arrives;
  };
  /// The messages of one (from, to, tag), in order; receives are counted off against them.
  struct Stream {
    std::vector<std::shared_ptr<Message>> messages;
    size_t receives = 0;
  };
  using StreamKey = std::tuple<int, int, Tag>;
  struct Page {
    alignas(4096) std::byte bytes[4096] = {};
  };
  struct Rank {
    explicit Rank(const SimOptions& o)
        : window((o.window_bytes + sizeof(Page) - 1) / sizeof(Page)),
          sent(o.ranks),
          sent_bytes(o.ranks),
          arrived(o.ranks) {}
    Time cut = Time::max();
    bool left = false;
    Signal signal;
    std::atomic<uint64_t> version{0};  // grows when something changed that this rank may wait for
    uint64_t dropped = 0;
    std::vector<Page> window;
    std::map<int, uint64_t> flags;
    std::vector<uint64_t> sent, sent_bytes;   // [to]: messages, payload
    std::vector<std::set<uint64_t>> arrived;  // [from]: numbers
  };

  void changed(Rank& rank) {
    rank.version.fetch_add(1);
    scheduler_.notify(rank.signal);
  }
  void changed_all() {
    for (auto& rank : ranks_) changed(*rank);
  }
  Time cut_of(int a, int b) const { return std::min(ranks_[a]->cut, ranks_[b]->cut); }
  std::shared_ptr<Message> send(int from, int to, Tag tag, std::span<const std::byte> bytes);
  void deliver(int from, int to, Tag tag, std::shared_ptr<Message> message);
  static std::string name(int from, int to, Tag tag) {
    return fmt::format("{}>{} {}.{}#{}", from, to, tag.operation, tag.part, tag.sequence);
  }

  TestScheduler& scheduler_;
  const SimOptions options_;
  const Cancel* const cancel_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<StreamKey, Stream> streams_;
  uint64_t duplicates_ = 0;
};

class SimTransport final : public Transport {
 public:
  SimTransport(SimNetwork& network, int rank) : network_(network), rank_(rank) {}
  ~SimTransport() override { SimTransport::leave(); }
  void leave() override {
    std::lock_guard lock(network_.mutex_);
    me().left = true;
    network_.changed_all();
  }
  int rank() const override { return rank_; }
  int size() const override { return network_.options_.ranks; }
  std::string name() const override { return "sim"; }

  Ticket post_send(int peer, Tag tag, std::span<const std::byte> bytes) override;
  Ticket post_recv(int peer, Tag tag, std::span<std::byte> bytes) override;
  void wait(Ticket ticket, Patience patience) override;

  std::span<std::byte> window() override { return bytes_of(me()); }
  std::span<const std::byte> window_of(int peer) const override {
    return bytes_of(*network_.ranks_[peer]);
  }
  void raise(int index, uint64_t value) override;
  void await(int peer, int index, uint64_t value, Patience patience,
             std::string_view what) override;

  uint64_t sent_bytes(int peer) const override { return me().sent_bytes[peer]; }
  uint64_t dropped() const override { return me().dropped; }

 private:
  struct Post {
    bool send = false;
    int peer = -1;
    Tag tag;
    const std::byte* source = nullptr;
    std::span<std::byte> target;
    std::shared_ptr<SimNetwork::Message> message;  // of a send
    size_t place = 0;                              // of a receive, in its stream
  };
  /// What a wait finds when it looks: done, failed for a reason, or when to look again at the
  /// latest.
  struct Look {
    bool done = false;
    std::string reason;
    Time again = Time::max();
  };

  SimNetwork::Rank& me() const { return *network_.ranks_[rank_]; }
  std::span<std::byte> bytes_of(SimNetwork::Rank& rank) const {
    return {reinterpret_cast<std::byte*>(rank.window.data()), network_.options_.window_bytes};
  }
  Look look(const Post& post);
  void finish(const Post& post);
  void wait_for(FunctionRef<Look()> look, Patience patience, CommFailure failure);

  SimNetwork& network_;
  const int rank_;
  std::map<uint64_t, Post> posts_;
  uint64_t next_ = 1;
  bool broken_ = false;
};

inline std::unique_ptr<Transport> SimNetwork::transport(int rank) {
  return std::make_unique<SimTransport>(*this, rank);
}

inline std::shared_ptr<SimNetwork::Message> SimNetwork::send(int from, int to, Tag tag,
                                                             std::span<const std::byte> bytes) {
  const uint64_t number = ranks_[from]->sent[to]++;
  ranks_[from]->sent_bytes[to] += bytes.size();
  const PhiloxKey delays{options_.seed, Purpose::kTest, 1,
                         static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to)};
  const auto span = static_cast<uint64_t>((options_.most - options_.least).count());
  auto message = std::make_shared<Message>();
  message->bytes.assign(bytes.begin(), bytes.end());
  message->epoch = options_.epoch;
  message->number = number;
  message->arrives =
      scheduler_.now() + options_.least + Duration(philox_below(delays, number, span + 1));
  bool lost = false;
  int copies = 1;
  for (const Fault& fault : options_.faults) {
    if (fault.from != from || fault.to != to || fault.number != number) continue;
    if (fault.kind == Fault::Kind::kDrop) lost = true;
    if (fault.kind == Fault::Kind::kDelay) message->arrives += fault.delay;
    if (fault.kind == Fault::Kind::kDuplicate) ++copies;
    if (fault.kind == Fault::Kind::kForeignEpoch) {
      auto foreign = std::make_shared<Message>(*message);
      foreign->epoch.epoch -= 1;
      for (auto& byte : foreign->bytes) byte = ~byte;
      deliver(from, to, tag, foreign);
    }
  }
  // Before the copies are let in: what is of equal tag arrives in order.
  const Stream& stream = streams_[{from, to, tag}];
  if (!stream.messages.empty())
    message->arrives = std::max(message->arrives, stream.messages.back()->arrives);
  if (message->arrives > cut_of(from, to)) lost = true;
  scheduler_.record(fmt::format("{} sent, {} bytes, {} {}", name(from, to, tag), bytes.size(),
                                lost ? "lost before" : "arrives",
                                message->arrives.time_since_epoch().count()));
  for (int copy = 0; copy < copies && !lost; ++copy) deliver(from, to, tag, message);
  return message;
}

/// The receiver's door.
inline void SimNetwork::deliver(int from, int to, Tag tag, std::shared_ptr<Message> message) {
  Rank& receiver = *ranks_[to];
  const Epoch& epoch = message->epoch;
  if (epoch.run != options_.epoch.run || epoch.epoch != options_.epoch.epoch ||
      epoch.plan != options_.epoch.plan) {
    ++receiver.dropped;
    scheduler_.record(fmt::format("{} is of epoch {}: dropped", name(from, to, tag), epoch.epoch));
    return;
  }
  if (!receiver.arrived[from].insert(message->number).second) {
    ++duplicates_;
    scheduler_.record(fmt::format("{} came twice: dropped", name(from, to, tag)));
    return;
  }
  streams_[{from, to, tag}].messages.push_back(std::move(message));
  changed(receiver);
}

inline Ticket SimTransport::post_send(int peer, Tag tag, std::span<const std::byte> bytes) {
  TUTTI_CHECK(peer >= 0 && peer < size() && peer != rank_, "rank {} cannot message rank {}", rank_,
              peer);
  std::lock_guard lock(network_.mutex_);
  auto message = network_.send(rank_, peer, tag, bytes);
  posts_[next_] = {.send = true,
                   .peer = peer,
                   .tag = tag,
                   .source = bytes.data(),
                   .message = std::move(message)};
  return {next_++};
}

inline Ticket SimTransport::post_recv(int peer, Tag tag, std::span<std::byte> bytes) {
  TUTTI_CHECK(peer >= 0 && peer < size() && peer != rank_, "rank {} cannot message rank {}", rank_,
              peer);
  std::lock_guard lock(network_.mutex_);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xA5});
  const size_t place = network_.streams_[{peer, rank_, tag}].receives++;
  posts_[next_] = {.send = false, .peer = peer, .tag = tag, .target = bytes, .place = place};
  return {next_++};
}

inline SimTransport::Look SimTransport::look(const Post& post) {
  const auto& messages = network_.streams_[{post.peer, rank_, post.tag}].messages;
  const SimNetwork::Message* message = post.message.get();
  if (!post.send && post.place < messages.size()) message = messages[post.place].get();
  const Time now = network_.scheduler_.now(), cut = network_.cut_of(rank_, post.peer);
  if (message != nullptr && message->arrives <= std::min(now, cut)) {
    if (post.send || message->bytes.size() == post.target.size()) return {.done = true};
    return {.reason = describe_size_mismatch(message->bytes.size(), post.target.size())};
  }
  if (now >= cut) return {.reason = "connection lost"};
  if (message == nullptr && network_.ranks_[post.peer]->left) {
    return {.reason = fmt::format("rank {} has left", post.peer)};
  }
  return {.again = std::min(cut, message == nullptr ? Time::max() : message->arrives)};
}

inline void SimTransport::finish(const Post& post) {
  if (post.send) {
    TUTTI_CHECK(post.message->bytes.empty() || std::memcmp(post.source, post.message->bytes.data(),
                                                           post.message->bytes.size()) == 0,
                "the bytes of send {} were changed before it was done",
                SimNetwork::name(rank_, post.peer, post.tag));
    return;
  }
  auto& message = network_.streams_[{post.peer, rank_, post.tag}].messages[post.place];
  std::copy(message->bytes.begin(), message->bytes.end(), post.target.begin());
  network_.scheduler_.record(
      fmt::format("{} received", SimNetwork::name(post.peer, rank_, post.tag)));
}

inline void SimTransport::wait_for(FunctionRef<Look()> look, Patience patience,
                                   CommFailure failure) {
  const Time begin = network_.scheduler_.now();
  for (auto result = WaitResult::kReady; true;) {
    const uint64_t version = me().version.load();
    Look seen;
    {
      std::lock_guard lock(network_.mutex_);
      seen = broken_ ? Look{.reason = "the transport has failed before"} : look();
      if (seen.done) return;
      const bool late = network_.scheduler_.now() >= patience.deadline().at && !patience.extend();
      if (seen.reason.empty() && (late || result == WaitResult::kCancelled)) {
        seen.reason = describe_end(late ? WaitResult::kTimedOut : result, network_.cancel_);
      }
      if (!seen.reason.empty()) broken_ = true;
    }
    if (!seen.reason.empty()) {
      failure.waited = network_.scheduler_.now() - begin;
      failure.reason = seen.reason;
      network_.scheduler_.record(fmt::format("rank {} gives up {} with {}: {}", rank_,
                                             failure.operation, failure.peer, failure.reason));
      throw CommError(std::move(failure));
    }
    result = network_.scheduler_.wait(
        me().signal, [&] { return me().version.load() != version; },
        {std::min(patience.deadline().at, seen.again)}, network_.cancel_);
  }
}

inline void SimTransport::wait(Ticket ticket, Patience patience) {
  Post post;
  {
    std::lock_guard lock(network_.mutex_);
    const auto found = posts_.find(ticket.id);
    TUTTI_CHECK(found != posts_.end(), "rank {} waits for a ticket that it does not hold", rank_);
    post = found->second;
  }
  wait_for([&] { return look(post); }, std::move(patience),
           {.rank = rank_,
            .operation = describe_message(post.send, post.tag),
            .peer = post.peer,
            .sequence = post.tag.sequence,
            .reason = ""});
  std::lock_guard lock(network_.mutex_);
  finish(post);
  posts_.erase(ticket.id);
}

inline void SimTransport::raise(int index, uint64_t value) {
  std::lock_guard lock(network_.mutex_);
  me().flags[index] = value;
  network_.scheduler_.record(fmt::format("rank {} raises flag {} to {}", rank_, index, value));
  network_.changed_all();
}

inline void SimTransport::await(int peer, int index, uint64_t value, Patience patience,
                                std::string_view what) {
  const auto raised = [&]() -> Look {
    SimNetwork::Rank& owner = *network_.ranks_[peer];
    if (owner.flags[index] >= value) return {.done = true};
    const Time cut = network_.cut_of(rank_, peer);
    if (network_.scheduler_.now() >= cut) return {.reason = "connection lost"};
    if (owner.left) return {.reason = fmt::format("rank {} has left", peer)};
    return {.again = cut};
  };
  wait_for(raised, std::move(patience),
           {.rank = rank_,
            .operation = std::string(what),
            .peer = peer,
            .sequence = value,
            .reason = ""});
}

}  // namespace tutti::test
