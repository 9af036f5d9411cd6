// How workers find each other: everybody hands in a few bytes and descriptors, everybody gets
// everyone's. The launcher serves it (a socketpair per process, an object for threads) as long as
// the workers live; transports are made from it, for one epoch after the other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/patience.h"
#include "base/wait.h"
#include "net/membership.h"

namespace tutti {

/// What one rank hands in. Descriptors are duplicated to every receiver.
struct Card {
  std::string bytes;
  std::vector<int> fds;          ///< in: borrowed. out: owned by the receiver of the deck
  std::shared_ptr<void> object;  ///< threads only: shared by all
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// An all-gather of cards, in rank order. All ranks must call it equally often. Throws CommError
  /// when its patience ends, when cancelled, or when a rank that has not handed in its card never
  /// will: its worker is gone, or has gone on to a later epoch.
  virtual std::vector<Card> exchange(const Card& mine, Patience patience) = 0;
  /// The rendezvous of an epoch's members, of which this worker must be one. It shares this one's
  /// connection, so only one of the two is used at a time and this one outlives it. Whoever hands
  /// in a card there has left all earlier epochs. All members must list each other in one order.
  virtual std::unique_ptr<Rendezvous> among(const Membership& membership) = 0;
};

/// Processes: the worker's end of its socketpair (AF_UNIX, SOCK_STREAM) with the launcher.
std::unique_ptr<Rendezvous> make_process_rendezvous(int rank, int size, Fd socket, Clock& clock,
                                                    const Cancel* cancel);
/// The launcher's side: collects a card from each member of a group and hands the deck to all, as
/// often as they ask, until it is destroyed or all sockets are closed. Runs on a thread of its own:
/// start it after the workers were forked.
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

/// Threads: one object for all; make one view per worker.
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
