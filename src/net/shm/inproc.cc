// How a message moves between threads. A post (of a send or a receive) is in one of these states:
//
//   posted       it waits in the queue of its pair (source, destination) for its counterpart
//   matched      both ends are posted. Whichever end is waited for first copies, so two ranks that
//                both wait for their sends before their receives cannot block each other
//   copying      one thread moves the bytes, outside of all locks; neither span may be given back
//                before it has ended
//   done/failed  it has ended
//
// The lock of a pair guards the states of both its ends; a waiting thread only reads them.
#include "net/shm/inproc.h"

#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "net/failure.h"
#include "net/shm/flags.h"
#include "net/shm/shared_memory.h"

namespace tutti {

namespace {

enum class State { kPosted, kMatched, kCopying, kDone, kFailed };

struct Post {
  bool send = false;
  int peer = -1;
  Tag tag;
  std::byte* data = nullptr;  // of a send: only read
  size_t size = 0;
  std::atomic<State> state{State::kPosted};  // written under the pair's lock
  std::shared_ptr<Post> counterpart;         // under the pair's lock
  std::string reason;                        // written before kFailed
};

/// The messages from one rank to another.
struct Pair {
  std::mutex mutex;
  std::deque<std::shared_ptr<Post>> sends, receives;  // those without a counterpart
};

/// What a rank shares with all others; handed round as the card of the rendezvous.
struct Member {
  Member(int size, std::shared_ptr<Window> w) : window(std::move(w)), from(size) {}
  const std::shared_ptr<Window> window;
  Signal signal;
  std::atomic<bool> left{false};
  std::vector<Pair> from;  // [source]: messages to me
  Flags flags;
};

class Inproc final : public Transport {
 public:
  Inproc(int rank, std::vector<std::shared_ptr<Member>> members, std::vector<int> hosts,
         Clock& clock, const Cancel* cancel)
      : rank_(rank),
        members_(std::move(members)),
        hosts_(std::move(hosts)),
        clock_(clock),
        cancel_(cancel),
        sent_(members_.size()) {}

  ~Inproc() override { Inproc::leave(); }
  void leave() override {
    release_all("the transport is gone");

    // Whoever waits for a message or a counter of mine would wait for ever: all are woken to see
    // that I have left. The memory itself stays, since every rank holds every member.
    me().left.store(true);
    for (auto& member : members_) clock_.notify(member->signal);
    for (Flag& flag : me().flags) clock_.notify(flag.signal);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string name() const override { return "inproc"; }

  Ticket post_send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    return post(true, peer, tag, const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  Ticket post_recv(int peer, Tag tag, std::span<std::byte> bytes) override {
    return post(false, peer, tag, bytes.data(), bytes.size());
  }
  void wait(Ticket ticket, Patience patience) override;

  std::span<std::byte> window() override { return me().window->bytes(); }
  std::shared_ptr<Window> held_window() override { return me().window; }
  std::span<const std::byte> window_of(int peer) const override {
    if (hosts_[peer] != hosts_[rank_]) return {};
    return members_[peer]->window->bytes();
  }
  void raise(int index, uint64_t value) override { raise_flag(clock_, me().flags[index], value); }
  void await(int peer, int index, uint64_t value, Patience patience,
             std::string_view what) override;

  uint64_t sent_bytes(int peer) const override {
    return sent_[peer].load(std::memory_order_relaxed);
  }
  uint64_t dropped() const override { return 0; }

 private:
  Member& me() const { return *members_[rank_]; }
  Pair& pair_of(const Post& post) const {
    return post.send ? members_[post.peer]->from[rank_] : me().from[post.peer];
  }
  Ticket post(bool send, int peer, Tag tag, std::byte* data, size_t size);
  void match(const std::shared_ptr<Post>& post);
  void copy(Post& post);
  void release_all(const std::string& reason);

  const int rank_;
  const std::vector<std::shared_ptr<Member>> members_;
  const std::vector<int> hosts_;
  Clock& clock_;
  const Cancel* const cancel_;
  std::vector<std::atomic<uint64_t>> sent_;
  std::mutex mutex_;  // guards what follows; never taken within a pair's
  std::unordered_map<uint64_t, std::shared_ptr<Post>> posts_;
  uint64_t next_id_ = 1;
  std::atomic<bool> broken_{false};
  std::string broken_reason_;
};

Ticket Inproc::post(bool send, int peer, Tag tag, std::byte* data, size_t size) {
  TUTTI_CHECK(peer >= 0 && peer < this->size() && peer != rank_, "rank {} cannot message rank {}",
              rank_, peer);
  auto post = std::make_shared<Post>();
  post->send = send;
  post->peer = peer;
  post->tag = tag;
  post->data = data;
  post->size = size;

  // A post on a broken transport has failed from the start; its wait throws.
  Ticket ticket;
  {
    std::lock_guard lock(mutex_);
    if (broken_) {
      post->reason = broken_reason_;
      post->state = State::kFailed;
    }
    ticket.id = next_id_++;
    posts_[ticket.id] = post;
  }

  if (send) sent_[peer].fetch_add(size, std::memory_order_relaxed);
  match(post);
  return ticket;
}

void Inproc::match(const std::shared_ptr<Post>& post) {
  Pair& pair = pair_of(*post);
  {
    std::lock_guard lock(pair.mutex);
    if (post->state != State::kPosted) return;

    // The first counterpart of this tag, in the order in which they were posted; else this post
    // joins the queue of its own side.
    auto& others = post->send ? pair.receives : pair.sends;
    auto found = others.begin();
    while (found != others.end() && (*found)->tag != post->tag) ++found;
    if (found == others.end()) {
      (post->send ? pair.sends : pair.receives).push_back(post);
      return;
    }

    // Sizes are compared here, so that both ends fail with the same words.
    std::shared_ptr<Post> other = *found;
    others.erase(found);
    State next = State::kMatched;
    if (post->size != other->size) {
      next = State::kFailed;
      const Post& send = post->send ? *post : *other;
      const Post& receive = post->send ? *other : *post;
      post->reason = other->reason = describe_size_mismatch(send.size, receive.size);
    } else {
      post->counterpart = other;
      other->counterpart = post;
    }
    post->state = next;
    other->state = next;
  }

  // The peer may be waiting already. The thread that posts this end has not waited for it yet.
  clock_.notify(members_[post->peer]->signal);
}

void Inproc::copy(Post& post) {
  Pair& pair = pair_of(post);
  std::shared_ptr<Post> other;
  {
    std::lock_guard lock(pair.mutex);
    if (post.state != State::kMatched) return;
    other = post.counterpart;
    post.state = other->state = State::kCopying;
  }

  // The state alone keeps both spans alive meanwhile: release_all() waits for a copy to end.
  if (post.size > 0) {
    post.send ? std::memcpy(other->data, post.data, post.size)
              : std::memcpy(post.data, other->data, post.size);
  }
  {
    std::lock_guard lock(pair.mutex);
    post.counterpart = other->counterpart = nullptr;
    post.state = other->state = State::kDone;
  }
  clock_.notify(members_[post.peer]->signal);
}

void Inproc::wait(Ticket ticket, Patience patience) {
  std::shared_ptr<Post> post;
  {
    std::lock_guard lock(mutex_);
    auto found = posts_.find(ticket.id);
    TUTTI_CHECK(found != posts_.end(), "rank {} waits for a ticket that it does not hold", rank_);
    post = found->second;
  }

  // Sleep until there is something to do for this post: copy it, or learn that it has ended or that
  // its peer has left. While another thread copies there is nothing to do.
  const Time start = clock_.now();
  const std::atomic<bool>& left = members_[post->peer]->left;
  WaitResult result = WaitResult::kReady;
  auto ready = [&] {
    const State state = post->state.load();
    return state == State::kPosted ? left.load() : state != State::kCopying;
  };
  while (result == WaitResult::kReady && post->state != State::kDone) {
    result = clock_.wait(me().signal, ready, patience.deadline(), cancel_);
    if (result == WaitResult::kTimedOut && patience.extend()) {
      result = WaitResult::kReady;
      continue;
    }
    if (result != WaitResult::kReady) break;
    if (post->state == State::kFailed || post->state == State::kPosted) break;
    copy(*post);
  }

  // Done wins over a deadline that passed meanwhile.
  if (post->state == State::kDone) {
    std::lock_guard lock(mutex_);
    posts_.erase(ticket.id);
    return;
  }

  // Anything else breaks the transport; a failed post gives its own reason, and a post that is
  // still waiting after `ready` has lost its peer.
  CommFailure failure{.rank = rank_,
                      .operation = describe_message(post->send, post->tag),
                      .peer = post->peer,
                      .sequence = post->tag.sequence,
                      .waited = clock_.now() - start,
                      .reason = describe_end(result, cancel_)};
  if (result == WaitResult::kReady) {
    failure.reason =
        post->state == State::kFailed ? post->reason : fmt::format("rank {} has left", post->peer);
  }

  release_all(failure.reason);
  throw CommError(std::move(failure));
}

/// Fails all that is posted. After this no thread touches a span of mine any more.
void Inproc::release_all(const std::string& reason) {
  std::unordered_map<uint64_t, std::shared_ptr<Post>> posts;
  {
    std::lock_guard lock(mutex_);
    if (!broken_) broken_reason_ = reason;
    broken_ = true;
    posts = posts_;
  }

  // `broken_` keeps new posts out, so this copy of the list is all there is. Each post leaves its
  // pair in the way that its state asks for.
  for (auto& [id, post] : posts) {
    Pair& pair = pair_of(*post);
    std::unique_lock lock(pair.mutex);
    if (post->state == State::kPosted) {
      std::erase(post->send ? pair.sends : pair.receives, post);
      post->reason = reason;
      post->state = State::kFailed;
    } else if (post->state == State::kMatched) {
      post->counterpart->reason = fmt::format("rank {} has given up", rank_);
      post->reason = reason;
      post->counterpart->state = State::kFailed;
      post->state = State::kFailed;
      post->counterpart->counterpart = nullptr;
      post->counterpart = nullptr;
    } else if (post->state == State::kCopying) {
      lock.unlock();  // a memcpy by a thread of this process: it ends by itself
      clock_.wait(
          me().signal, [&] { return post->state != State::kCopying; }, Deadline::never(), nullptr);
    }
  }

  // Peers with a failed counterpart wake and see it; so do my own threads.
  for (auto& [id, post] : posts) clock_.notify(members_[post->peer]->signal);
  clock_.notify(me().signal);
}

void Inproc::await(int peer, int index, uint64_t value, Patience patience, std::string_view what) {
  const Time start = clock_.now();
  Member& owner = *members_[peer];
  Flag& flag = owner.flags[index];
  auto raised = [&] { return flag.value.load(std::memory_order_acquire) >= value; };
  auto ready = [&] { return raised() || owner.left.load() || broken_.load(); };
  WaitResult result;
  do {
    result = clock_.wait(flag.signal, ready, patience.deadline(), cancel_);
  } while (result == WaitResult::kTimedOut && patience.extend());

  // `left` is read before the counter: what the owner raised before it left still counts.
  const bool left = owner.left.load();
  if (raised()) return;

  CommFailure failure{.rank = rank_,
                      .operation = std::string(what),
                      .peer = peer,
                      .sequence = value,
                      .waited = clock_.now() - start,
                      .reason = describe_end(result, cancel_)};
  if (result == WaitResult::kReady) {
    std::lock_guard lock(mutex_);
    failure.reason = left ? fmt::format("rank {} has left", peer) : broken_reason_;
  }

  release_all(failure.reason);
  throw CommError(std::move(failure));
}

}  // namespace

std::unique_ptr<Transport> make_inproc(const TransportOptions& options, Rendezvous& rendezvous,
                                       Clock& clock, const Cancel* cancel, Patience patience) {
  const int rank = rendezvous.rank(), size = rendezvous.size();
  auto mine = std::make_shared<Member>(size, window_for(options.window, options.window_bytes, false,
                                                        fmt::format("window of rank {}", rank)));

  // The cards carry the members themselves: all ranks share one process.
  std::vector<std::shared_ptr<Member>> members;
  for (Card& card : rendezvous.exchange({.object = mine}, std::move(patience))) {
    members.push_back(std::static_pointer_cast<Member>(card.object));
  }

  // Hosts are only pretended here, so that layouts of several hosts can be tested by threads.
  std::vector<int> hosts = options.hosts.empty() ? std::vector<int>(size, 0) : options.hosts;
  return std::make_unique<Inproc>(rank, std::move(members), std::move(hosts), clock, cancel);
}

}  // namespace tutti
