// tutti-bench-comm: a resident program that times all-reduces of gradients that already are where
// the transport wants them. It forks its ranks once, then reads lines "BYTES ITERS" and answers
// each with a line of JSON; between lines all ranks sleep.
//
//   tutti-bench-comm --ranks N --lanes W --transport shm|tcp --kind exact|ring|root|memcpy
//                    --hosts H
//
// What is run are the comm instructions of a plan of data parallelism over one unit of BYTES. The
// time of an iteration is the slowest rank's, from a common start, until the rank may read the
// whole sum: over windows a sum in place whose slices are read where their owners made them, over
// tcp one that returns its blocks. `memcpy` is the limit to compare with: all ranks copy BYTES from
// private to private memory at once. The file is longer than most, because the program has both
// sides: the parent that forks and asks, and the ranks that make a plan, connect, time and answer.
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "comm/lending.h"
#include "comm/pulls.h"
#include "net/make.h"
#include "plan/ir/plan_memory.h"
#include "plan/make/plan_mesh.h"

namespace tutti {
namespace {

struct Options {
  int ranks = 2, lanes = 2, hosts = 1;
  std::string transport = "shm", kind = "exact";
};

constexpr int kMaxRanks = 64, kMaxIterations = 20'000, kWarmUps = 2;

struct Request {
  int64_t bytes = 0, iterations = 0;
};

// In memory that all ranks and the parent share.
struct Board {
  std::atomic<uint32_t> arrived{0}, round{0};
  int64_t sent[kMaxRanks][kMaxRanks];  // bytes in one iteration, from and to
  double micros[kMaxRanks][kMaxIterations];
};

// A common start. Spins, for a sleeping rank would start late; where ranks outnumber cores the
// others must get a turn.
void start_together(Board& board, int ranks) {
  const uint32_t round = board.round.load(std::memory_order_acquire);
  if (board.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(ranks)) {
    board.arrived.store(0);
    board.round.store(round + 1, std::memory_order_release);
    return;
  }
  for (int64_t spins = 0; board.round.load(std::memory_order_acquire) == round; ++spins) {
    if (spins < 20'000) {
      __builtin_ia32_pause();
    } else {
      ::sched_yield();
    }
  }
}

// Small whole numbers: their sums are exact in any order.
float value(int64_t lane, int64_t i) { return static_cast<float>((i * 7 + lane * 13) & 255); }

/// A model of one unit of that many floats, and nothing else.
ModelShape one_unit(int64_t floats) {
  BlockShape block;
  block.name = "unit";
  block.parameters.push_back(
      {.name = "unit.weight", .dims = {floats}, .offset = 0, .size = floats});
  block.unit_size = block.gradient_size = align_up(floats, kAlign);
  block.segments.resize(1);
  ModelShape model;
  model.blocks.push_back(block);
  return model;
}

Plan plan_of(const Options& options, int64_t floats) {
  MeshOptions mesh;
  mesh.mesh.data = options.ranks;
  mesh.batch.lanes = options.lanes;
  mesh.windows = options.transport != "tcp";
  mesh.hosts = options.hosts;
  if (options.kind == "root") mesh.fold = FoldKind::kRoot;
  mesh.ring = options.kind == "ring";
  return plan_mesh(one_unit(floats), mesh);
}

/// One rank: a transport and, for the size in use, what the comm instructions of its program do.
class Rank {
 public:
  Rank(const Options& options, int rank, Rendezvous& rendezvous, Board& board)
      : options_(options), rank_(rank), rendezvous_(rendezvous), board_(board) {}

  void serve(const Request& request) {
    if (request.bytes != bytes_) prepare(request.bytes);
    for (int64_t it = -kWarmUps; it < request.iterations; ++it) {
      if (options_.kind != "memcpy") rewrite();
      start_together(board_, options_.ranks);
      const Time begin = clock_.now();
      options_.kind == "memcpy" ? copy() : all_reduce();
      const double micros = std::chrono::duration<double, std::micro>(clock_.now() - begin).count();
      if (it >= 0) board_.micros[rank_][it] = micros;
    }
  }

 private:
  Deadline deadline() const { return clock_.after(std::chrono::seconds(30)); }
  const Program& program() const { return plan_.programs[rank_]; }

  void prepare(int64_t bytes) {
    copies_.clear();
    sums_.clear();
    lending_.reset();
    transport_.reset();
    bytes_ = bytes;
    step_ = 0;
    std::memset(board_.sent[rank_], 0, sizeof(board_.sent[rank_]));
    if (options_.kind == "memcpy") {
      from_.assign(bytes, 1);
      to_.assign(bytes, 0);
      return;
    }
    plan_ = plan_of(options_, bytes / 4);
    make_arena();
    lending_ = std::make_unique<Lending>(plan_, rank_, *transport_);
    make_pulls();
    fill();
    all_reduce();
    verify();
    for (int r = 0; r < options_.ranks; ++r) {
      if (r != rank_) board_.sent[rank_][r] = static_cast<int64_t>(transport_->sent_bytes(r));
    }
  }

  void make_arena() {
    const int64_t arena_bytes = window_bytes(program());
    TransportOptions transport{.kind = options_.transport};
    for (int r = 0; r < options_.ranks; ++r)
      transport.hosts.push_back(host_of(r, options_.ranks, options_.hosts));
    if (options_.transport != "tcp") transport.window_bytes = static_cast<size_t>(arena_bytes);
    transport_ =
        make_transport(transport, Epoch{1, epoch_++, 1}, rendezvous_, clock_, nullptr, deadline());
    arena_ = transport_->window();
    if (arena_.empty()) {
      to_.resize(arena_bytes);
      arena_ = std::as_writable_bytes(std::span(to_));
    }
  }

  float* floats(int buffer) const {
    return reinterpret_cast<float*>(arena_.data() + program().buffers[buffer].window_offset);
  }

  void make_pulls() {
    bool windows = true;
    for (int r = 0; r < options_.ranks; ++r) windows = windows && !transport_->window_of(r).empty();
    int64_t scratch_bytes = 0;
    for (const Instruction* i : instructions(Op::kReduce))
      scratch_bytes =
          std::max(scratch_bytes, SumPull::scratch_bytes(plan_.sums[i->transfer], rank_, windows));
    from_.resize(scratch_bytes);
    for (const Instruction* i : instructions(Op::kReduce)) {
      const SumTransfer& transfer = plan_.sums[i->transfer];
      const auto levels =
          levels_of(plan_, *i, transfer.units[0], rank_, [this](int b) { return floats(b); });
      sums_.push_back(make_sum_pull(transfer, {i->id, i->parcel, to_string(*i)}, *transport_,
                                    arena_, {levels}, std::as_writable_bytes(std::span(from_))));
      by_hosts_ = transfer.by_hosts;
    }
    for (const Instruction* i : instructions(Op::kGather))
      copies_.push_back(std::make_unique<CopyPull>(
          plan_.copies[i->transfer], TransferName{i->id, i->parcel, to_string(*i)}, *transport_,
          arena_, [this](int buffer) { return reinterpret_cast<std::byte*>(floats(buffer)); }));
  }

  std::vector<const Instruction*> instructions(Op op) const {
    std::vector<const Instruction*> found;
    for (const Queue& queue : program().queues)
      for (const Instruction& i : queue.instructions)
        if (i.op == op) found.push_back(&i);
    return found;
  }

  /// What this rank adds to the sum: one term per subtree of its lanes.
  std::vector<std::span<float>> terms() const {
    std::vector<std::span<float>> all;
    for (const Operand* term : operands_of(*instructions(Op::kReduce)[0], OperandRole::kTerm))
      all.emplace_back(floats(term->buffer), static_cast<size_t>(bytes_ / 4));
    return all;
  }

  void fill() const {
    const std::vector<Range> parts =
        subtrees(lanes_of(rank_, options_.ranks, options_.lanes), options_.lanes);
    const auto all = terms();
    for (size_t p = 0; p < parts.size(); ++p) {
      for (size_t i = 0; i < all[p].size(); ++i) {
        all[p][i] = 0;
        for (int64_t lane = parts[p].begin; lane < parts[p].end; ++lane)
          all[p][i] += value(lane, static_cast<int64_t>(i));
      }
    }
  }

  /// Reads the whole sum where the plan's Update does: here, or in the windows of those who made
  /// slices of it.
  void verify() const {
    for (const Operand* part : operands_of(*instructions(Op::kUpdate)[0], OperandRole::kGradient)) {
      const int owner = part->rank < 0 ? rank_ : part->rank;
      const std::span<const std::byte> memory =
          owner == rank_ ? arena_ : transport_->window_of(owner);
      const auto* sum = reinterpret_cast<const float*>(
          memory.data() + plan_.programs[owner].buffers[part->buffer].window_offset);
      for (int64_t i = part->range.begin; i < std::min(part->range.end, bytes_ / 4); ++i) {
        float expected = 0;
        for (int64_t lane = 0; lane < options_.lanes; ++lane) expected += value(lane, i);
        if (sum[i] != expected) {
          throw Error(fmt::format("rank {}: float {} of {} is {} and should be {}", rank_, i,
                                  bytes_ / 4, sum[i], expected));
        }
      }
    }
    for (const Instruction* i : instructions(Op::kRelease)) lending_->release(i->parcel, step_ - 1);
  }

  /// As a backward pass does between two reductions: every rank has just written its whole
  /// gradient. It is not timed.
  void rewrite() {
    // nobody copies from it any more: in a step the vote says so
    start_together(board_, options_.ranks);
    for (const Instruction* i : instructions(Op::kAcquire))
      lending_->acquire(i->parcel, step_, deadline());
    for (const std::span<float> term : terms()) std::memset(term.data(), 0, term.size_bytes());
  }

  void all_reduce() {
    for (const auto& sum : sums_) sum->run(step_, deadline());
    // the others' slices are made: the vote says so, too
    if (by_hosts_) start_together(board_, options_.ranks);
    for (const auto& copy : copies_) copy->run(step_, deadline());
    if (step_ > 0)  // verify() releases the first one
      for (const Instruction* i : instructions(Op::kRelease)) lending_->release(i->parcel, step_);
    ++step_;
  }

  void copy() { std::memcpy(to_.data(), from_.data(), static_cast<size_t>(bytes_)); }

  const Options options_;
  const int rank_;
  Rendezvous& rendezvous_;
  Board& board_;
  SystemClock clock_;
  std::unique_ptr<Transport> transport_;
  Plan plan_;
  std::unique_ptr<Lending> lending_;
  std::vector<std::unique_ptr<SumPull>> sums_;
  std::vector<std::unique_ptr<CopyPull>> copies_;
  bool by_hosts_ = false;
  // of memcpy; else scratch of the sums, and gradients where there is no window
  std::vector<char> from_, to_;
  std::span<std::byte> arena_;  // the gradients
  int64_t bytes_ = -1;
  uint64_t step_ = 0;
  uint32_t epoch_ = 1;
};

int run_rank(const Options& options, int rank, Fd rendezvous_socket, const Fd& commands,
             Board& board) {
  try {
    SystemClock clock;
    auto rendezvous =
        make_process_rendezvous(rank, options.ranks, std::move(rendezvous_socket), clock, nullptr);
    Rank worker(options, rank, *rendezvous, board);
    Request request;
    while (::read(commands.get(), &request, sizeof(request)) == sizeof(request)) {
      worker.serve(request);
      if (::write(commands.get(), "k", 1) != 1) return 1;
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    return 1;
  }
}

// A core for each rank where there are enough, as mpirun does: two ranks on one core would measure
// the scheduler.
void pin(const Options& options, int rank) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < options.ranks)
    return;
  int left = rank;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

struct Team {
  std::vector<Fd> commands;
  std::unique_ptr<RendezvousServer> server;
};

std::pair<Fd, Fd> socket_pair() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw_errno("socketpair", "");
  return {Fd(pair[0]), Fd(pair[1])};
}

Team fork_ranks(const Options& options, Board& board) {
  Team team;
  std::vector<Fd> rendezvous;
  for (int r = 0; r < options.ranks; ++r) {
    auto [ours, theirs] = socket_pair();
    auto [command_ours, command_theirs] = socket_pair();
    const pid_t pid = ::fork();
    if (pid < 0) throw_errno("fork", "");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      team.commands.clear();
      rendezvous.clear();
      ours.reset();
      command_ours.reset();
      pin(options, r);
      ::_exit(run_rank(options, r, std::move(theirs), command_theirs, board));
    }
    rendezvous.push_back(std::move(ours));
    team.commands.push_back(std::move(command_ours));
  }
  team.server = std::make_unique<RendezvousServer>(std::move(rendezvous));
  return team;
}

// All at once: the others spin for ever at the common start when one rank has ended.
void await_answers(const Team& team) {
  std::vector<pollfd> waiting;
  for (const Fd& fd : team.commands) waiting.push_back({fd.get(), POLLIN, 0});
  for (size_t answered = 0; answered < team.commands.size();) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0) throw_errno("poll", "the ranks");
    for (size_t r = 0; r < waiting.size(); ++r) {
      if (waiting[r].revents == 0) continue;
      char answer = 0;
      if (::read(waiting[r].fd, &answer, 1) != 1) throw Error(fmt::format("rank {} has ended", r));
      waiting[r].fd = -1;
      ++answered;
    }
  }
}

nlohmann::json measure(const Options& options, const Request& request, Team& team,
                       const Board& board) {
  for (const Fd& fd : team.commands)
    write_all(fd.get(), std::as_bytes(std::span(&request, 1)), "rank");
  await_answers(team);
  std::vector<double> slowest(request.iterations, 0);
  for (int64_t it = 0; it < request.iterations; ++it) {
    for (int r = 0; r < options.ranks; ++r)
      slowest[it] = std::max(slowest[it], board.micros[r][it]);
  }
  std::sort(slowest.begin(), slowest.end());
  int64_t sent = 0, most_between_hosts = 0;
  std::vector<int64_t> left_host(options.hosts, 0);
  for (int a = 0; a < options.ranks; ++a) {
    for (int b = 0; b < options.ranks; ++b) {
      sent += board.sent[a][b];
      const int host = host_of(a, options.ranks, options.hosts);
      if (host != host_of(b, options.ranks, options.hosts)) left_host[host] += board.sent[a][b];
    }
  }
  for (int64_t bytes : left_host) most_between_hosts = std::max(most_between_hosts, bytes);
  return {{"bytes", request.bytes},
          {"median_us", slowest[slowest.size() / 2]},
          {"min_us", slowest.front()},
          {"sent_bytes", sent},
          {"host_bytes", most_between_hosts}};
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], text = argv[i + 1];
    if (key == "--ranks") {
      options.ranks = std::stoi(text);
    } else if (key == "--lanes") {
      options.lanes = std::stoi(text);
    } else if (key == "--hosts") {
      options.hosts = std::stoi(text);
    } else if (key == "--transport") {
      options.transport = text;
    } else if (key == "--kind") {
      options.kind = text;
    } else {
      throw Error("unknown option " + key);
    }
  }
  const std::vector<std::string> kinds{"exact", "ring", "root", "memcpy"};
  if (argc % 2 == 0) throw Error(fmt::format("{} has no value", argv[argc - 1]));
  if (std::find(kinds.begin(), kinds.end(), options.kind) == kinds.end())
    throw Error("no such kind: " + options.kind);
  if (options.transport != "shm" && options.transport != "tcp")
    throw Error("no such transport: " + options.transport);
  if (options.ranks < 1 || options.ranks > kMaxRanks || options.lanes < options.ranks ||
      options.hosts < 1 || options.hosts > options.ranks) {
    throw Error(fmt::format("cannot run {} ranks on {} lanes and {} hosts", options.ranks,
                            options.lanes, options.hosts));
  }
  return options;
}

int bench(int argc, char** argv) {
  const Options options = parse(argc, argv);
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw_errno("mmap", "the board");
  auto& board = *new (memory) Board;
  Team team = fork_ranks(options, board);
  Request request;
  while (std::cin >> request.bytes >> request.iterations) {
    if (request.bytes < 4 || request.bytes % 4 != 0 || request.iterations < 1 ||
        request.iterations > kMaxIterations) {
      throw Error(
          fmt::format("cannot run {} iterations of {} bytes", request.iterations, request.bytes));
    }
    std::cout << measure(options, request, team, board).dump() << std::endl;
  }
  team.commands.clear();  // the ranks end when their sockets do
  while (::wait(nullptr) > 0) {
  }
  return 0;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  try {
    return tutti::bench(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tutti-bench-comm: %s\n", e.what());
    return 1;
  }
}
