// Every rank first tells all others what it is about to make. So a rank that was started with other
// options is named here, instead of by a time-out later, and the windows of a host are added up
// before the first of them is allocated.
#include "net/make.h"

#include <sys/random.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "config/job_parts.h"
#include "net/mixed.h"
#include "net/shm/flags.h"
#include "net/shm/inproc.h"
#include "net/shm/shared_memory.h"
#include "net/shm/shm.h"
#include "net/tcp/tcp.h"

namespace tutti {

uint64_t new_token() {
  uint64_t token = 0;
  if (::getrandom(&token, sizeof token, 0) != sizeof token) throw_errno("draw", "the run's token");
  return token;
}

std::string transport_terms(const TransportOptions& options, const Epoch& epoch) {
  return fmt::format(
      "{}\n{} transport, run {:016x}, epoch {}, plan {:016x}, {} connections, hosts [{}]",
      options.window_bytes, options.kind, epoch.run, epoch.epoch, epoch.plan, options.connections,
      fmt::join(options.hosts, " "));
}

namespace {

// The terms after their first line, the window's size, which may differ between ranks.
std::string without_window(const std::string& terms) {
  return terms.substr(std::min(terms.find('\n'), terms.size() - 1) + 1);
}

/// What shm allocates for a rank besides its window, at least (net/shm/shm.cc): its flags, and a
/// ring from every rank.
size_t control_bytes(int ranks) {
  return sizeof(Flags) + (size_t{16} << 10) * static_cast<size_t>(ranks);
}

void agree(const TransportOptions& options, const Epoch& epoch, Rendezvous& rendezvous,
           const Patience& patience) {
  const std::string terms = transport_terms(options, epoch);
  const std::vector<Card> deck = rendezvous.exchange({.bytes = terms}, patience);

  // The memory of this host's ranks is counted together: each rank's alone might fit where that of
  // all does not. Rings grow with the square of the ranks.
  const auto& part = part_named<TransportPart>(options.kind);
  size_t host_bytes = 0;
  for (int r = 0; r < rendezvous.size(); ++r) {
    if (without_window(deck[r].bytes) != without_window(terms)) {
      throw Error(fmt::format("rank {} makes a {}, but rank {} a {}", rendezvous.rank(),
                              without_window(terms), r, without_window(deck[r].bytes)));
    }
    const bool same_host =
        options.hosts.empty() || options.hosts[r] == options.hosts[rendezvous.rank()];
    if (!same_host || !part.windows) continue;
    host_bytes += std::stoull(deck[r].bytes);
    if (part.processes) host_bytes += control_bytes(rendezvous.size());
  }
  check_available(host_bytes, "windows and rings of this host");
}

using Made = std::unique_ptr<Transport>;

/// A transport of the table in config/job_parts.cc that connects ranks; what GPUs have is a group
/// of their library.
struct Row {
  std::string_view name;
  Made (*make)(const TransportOptions& options, const Epoch& epoch, Rendezvous& rendezvous,
               Clock& clock, const Cancel* cancel, const Patience& patience);
};

Made inproc(const TransportOptions& options, const Epoch&, Rendezvous& rendezvous, Clock& clock,
            const Cancel* cancel, const Patience& patience) {
  return make_inproc(options, rendezvous, clock, cancel, patience);
}

Made tcp(const TransportOptions& options, const Epoch& epoch, Rendezvous& rendezvous, Clock& clock,
         const Cancel* cancel, const Patience& patience) {
  const std::vector<bool> all(static_cast<size_t>(rendezvous.size()), true);
  return make_tcp(options, epoch, all, rendezvous, clock, cancel, patience);
}

/// Shared memory connects the ranks of a host, and tcp those of different hosts.
Made shm(const TransportOptions& options, const Epoch& epoch, Rendezvous& rendezvous, Clock& clock,
         const Cancel* cancel, const Patience& patience) {
  const int rank = rendezvous.rank(), size = rendezvous.size();
  auto shm = make_shm(options, epoch, rendezvous, clock, cancel, patience);
  std::vector<bool> elsewhere(size, false);
  for (size_t r = 0; r < options.hosts.size(); ++r)
    elsewhere[r] = options.hosts[r] != options.hosts[rank];
  // All ranks or none go on: whether there are other hosts looks the same from everywhere.
  if (std::find(elsewhere.begin(), elsewhere.end(), true) == elsewhere.end()) return shm;
  auto tcp = make_tcp(options, epoch, elsewhere, rendezvous, clock, cancel, patience);
  return make_mixed(options.hosts, std::move(shm), std::move(tcp));
}

constexpr Row kTransports[] = {{"inproc", inproc}, {"shm", shm}, {"tcp", tcp}};

}  // namespace

std::vector<std::string> transport_names() { return row_names(kTransports); }

std::unique_ptr<Transport> make_transport(const TransportOptions& options, const Epoch& epoch,
                                          Rendezvous& rendezvous, Clock& clock,
                                          const Cancel* cancel, const Patience& patience) {
  TUTTI_CHECK(options.hosts.empty() || static_cast<int>(options.hosts.size()) == rendezvous.size(),
              "{} hosts for {} ranks", options.hosts.size(), rendezvous.size());
  TUTTI_CHECK(options.connections >= 1, "{} connections", options.connections);

  // Terms are compared before anything is made, for every kind.
  agree(options, epoch, rendezvous, patience);

  for (const Row& row : kTransports)
    if (row.name == options.kind)
      return row.make(options, epoch, rendezvous, clock, cancel, patience);
  throw Error(fmt::format("no such transport: {}", options.kind));
}

}  // namespace tutti
