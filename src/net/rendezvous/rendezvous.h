// How the ranks of an epoch find each other: everybody hands in a few bytes and descriptors,
// everybody gets everyone's. The launcher serves it (a socketpair per process rank, an object for
// thread ranks); transports are made from it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/wait.h"

namespace tutti {

/// What one rank hands in. Descriptors are duplicated to every receiver.
struct Card {
  std::string bytes;
  std::vector<int> fds;          ///< in: borrowed. out: owned by the receiver of the deck
  std::shared_ptr<void> object;  ///< thread ranks only: shared by all
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// An all-gather of cards, in rank order. All ranks must call it equally often. Throws CommError
  /// at the deadline, when cancelled, or when a rank destroyed its Rendezvous (or died) before it
  /// handed in its card.
  virtual std::vector<Card> exchange(const Card& mine, Deadline deadline) = 0;
};

/// Process ranks: the worker's end of its socketpair (AF_UNIX, SOCK_STREAM) with the launcher.
std::unique_ptr<Rendezvous> make_process_rendezvous(int rank, int size, Fd socket, Clock& clock,
                                                    const Cancel* cancel);
/// The launcher's side: collects one card from each worker and hands the deck to all, as often as
/// they ask, until it is destroyed or all sockets are closed. Runs on a thread of its own: start it
/// after the workers were forked.
class RendezvousServer {
 public:
  explicit RendezvousServer(std::vector<Fd> sockets);
  ~RendezvousServer();
  /// Why a worker could not be served, if it is the launcher's own fault (it had no descriptors
  /// left); else empty.
  std::string fault() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Thread ranks: one object for all; make one view per rank.
class ThreadRendezvous {
 public:
  ThreadRendezvous(int size, Clock& clock, const Cancel* cancel);
  ~ThreadRendezvous();
  std::unique_ptr<Rendezvous> view(int rank);
  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace tutti
