// How the ranks of an epoch find each other: each hands in a card of a few bytes and descriptors,
// and each gets the cards of all. It is an all-gather that works before there is a transport;
// transports are made from it. The launcher serves it: by a socketpair for each process rank, by
// one object for all thread ranks.
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
  std::vector<int> fds;          ///< handed in: borrowed. In a deck: owned by its receiver
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
