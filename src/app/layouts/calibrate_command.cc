// Transports are measured first, between forked ranks, before this process does any ATen work; then
// what cores do alone and all at once, by threads.
#include "app/layouts/calibrate_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <sstream>

#include "app/at_once.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/processor.h"
#include "base/text/terminal.h"
#include "comm/fold.h"
#include "config/job.h"
#include "config/job_parts.h"
#include "exec/tier.h"
#include "launch/local.h"
#include "net/make.h"
#include "optim/optimizer.h"
#include "plan/search/calibration.h"
#include "tensor/kernels.h"
#include "tensor/rate.h"
#include "tensor/threads.h"

namespace tutti {

namespace {

constexpr int64_t kSizes[] = {64, 4 << 10, 64 << 10, 512 << 10, 4 << 20, 16 << 20};
constexpr double kEach = 0.2;  // seconds that a measurement goes on

double seconds_since(const Clock& clock, Time begin) {
  return std::chrono::duration<double>(clock.now() - begin).count();
}

/// The time of an undisturbed call, since others may use the machine, too.
double lower_quarter(std::vector<double>& seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 4];
}

/// Half a round trip of two ranks; what `there` does is answered by what `back` does. Runs on both
/// ranks.
double half_trip(RankContext& context, const std::function<void(uint64_t)>& there,
                 const std::function<void(uint64_t)>& back, uint64_t& round, int times) {
  std::vector<double> trips;
  for (int i = 0; i < times; ++i, ++round) {
    const Time begin = context.clock.now();
    context.rank == 0 ? there(round) : back(round);
    context.rank == 0 ? back(round) : there(round);
    trips.push_back(seconds_since(context.clock, begin) / 2);
  }
  return lower_quarter(trips);
}

std::string measure_rank(RankContext& context, const std::string& kind) {
  const auto deadline = [&] { return context.clock.after(std::chrono::seconds(30)); };
  const bool windows = part_named<TransportPart>(kind).windows;
  auto transport = make_transport(
      {.kind = kind, .hosts = {0, 0}, .window_bytes = windows ? size_t{4096} : 0}, Epoch{1, 1, 1},
      context.rendezvous, context.clock, &context.control.cancel, deadline());

  // Both ranks send what the other receives, in turn, so half a round trip is one message.
  const int peer = 1 - context.rank;
  std::vector<std::byte> memory(static_cast<size_t>(kSizes[std::size(kSizes) - 1]));
  uint64_t round = 1;
  std::string text;
  for (int64_t size : kSizes) {
    const std::span<std::byte> bytes(memory.data(), static_cast<size_t>(size));
    const auto send = [&](uint64_t r) {
      transport->wait(transport->post_send(peer, {1, 0, r}, bytes), deadline());
    };
    const auto receive = [&](uint64_t r) {
      transport->wait(transport->post_recv(peer, {1, 0, r}, bytes), deadline());
    };
    const int times = size <= 64 << 10 ? 401 : size <= 512 << 10 ? 101 : 15;
    half_trip(context, send, receive, round, 3);
    text += fmt::format("{} {:.4e} ", size, half_trip(context, send, receive, round, times));
  }

  // A flag of a window is timed likewise. The results travel as text: a size and its seconds, with
  // size 0 for the flag.
  double flag = 0;
  if (windows) {
    flag = half_trip(
        context, [&](uint64_t r) { transport->raise(0, r); },
        [&](uint64_t r) { transport->await(peer, 0, r, deadline(), "calibrate"); }, round, 401);
  }
  return text + fmt::format("0 {:.4e}", flag);
}

TransportRates measure_transport(const std::string& kind) {
  const LaunchResult launched =
      launch_local({.ranks = 2, .threads = !part_named<TransportPart>(kind).processes},
                   [&](RankContext& context) {
                     const std::string text = measure_rank(context, kind);
                     if (context.rank != 0) return;
                     TUTTI_CHECK(text.size() < sizeof(context.control.result), "{} bytes of result",
                                 text.size());
                     std::memcpy(context.control.result, text.c_str(), text.size() + 1);
                   });
  if (!launched.ok()) throw Error(fmt::format("{}: {}", kind, launched.failures.front()));
  TransportRates rates;
  std::istringstream text(launched.result);
  for (MessageSample s; text >> s.bytes >> s.seconds;) {
    if (s.bytes > 0) rates.messages.push_back(s);
    if (s.bytes == 0) rates.flag = s.seconds;
  }
  return rates;
}

/// What each of `threads` threads does per second when all run `work` at once; a call does `each`
/// units. `make` gives a thread its work.
double rate_of(int threads, double each, const std::function<std::function<void()>()>& make) {
  SystemClock clock;
  std::barrier meeting(threads);
  std::vector<double> rates(static_cast<size_t>(threads), 0);
  at_once(threads, [&](int t) {
    prepare_compute_thread(1);
    const std::function<void()> work = make();
    work();
    meeting.arrive_and_wait();
    std::vector<double> calls;
    const Time begin = clock.now();
    while (seconds_since(clock, begin) < kEach) {
      const Time call = clock.now();
      work();
      calls.push_back(seconds_since(clock, call));
    }
    rates[static_cast<size_t>(t)] = each / lower_quarter(calls);
    meeting.arrive_and_wait();  // none has the memory to itself at the end
  });
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

Rates rates_of(int cores, double each, const std::function<std::function<void()>()>& make) {
  const double alone = rate_of(1, each, make);
  return {alone, cores > 1 ? std::min(alone, rate_of(cores, each, make)) : alone};
}

/// The rate of every number of threads up to the cores. If there are many cores, some numbers are
/// measured and those between them are interpolated.
std::vector<double> matmul_rates(int cores, const Matmul& matmul) {
  constexpr int64_t kSide = 768;
  const auto rate = [&](int threads) {
    return rate_of(threads, 2.0 * kSide * kSide * kSide, [&] {
      auto a = std::make_shared<std::vector<float>>(kSide * kSide, 1.0f);
      auto b = std::make_shared<std::vector<float>>(kSide * kSide, 1.0f);
      auto c = std::make_shared<std::vector<float>>(kSide * kSide);
      auto work = std::make_shared<std::vector<float>>(matmul.work(kSide, kSide, kSide));
      return [=, &matmul] {
        matmul.nn(a->data(), b->data(), c->data(), kSide, kSide, kSide, work->data());
      };
    });
  };

  // More ranks than one never count as faster each, whatever the noise.
  std::vector<double> rates(static_cast<size_t>(cores), 0);
  int before = 1;
  rates[0] = rate(1);
  for (int n = 2; before < cores; n = std::min(cores, n <= 4 ? n + 1 : n * 2)) {
    n = std::min(n, cores);
    const auto at = static_cast<size_t>(n - 1), last = static_cast<size_t>(before - 1);
    rates[at] = std::min(rates[0], rate(n));
    for (size_t k = last + 1; k < at; ++k)
      rates[k] = rates[last] + (rates[at] - rates[last]) * static_cast<double>(k - last) /
                                   static_cast<double>(at - last);
    before = n;
  }
  return rates;
}

constexpr size_t kFloats = 4 << 20;  // no cache holds it

std::function<void()> copying() {
  auto from = std::make_shared<std::vector<float>>(kFloats, 1.0f),
       to = std::make_shared<std::vector<float>>(kFloats);
  return [=] { std::memcpy(to->data(), from->data(), kFloats * sizeof(float)); };
}
std::function<void()> folding() {
  auto a = std::make_shared<std::vector<float>>(kFloats, 1.0f),
       b = std::make_shared<std::vector<float>>(kFloats, 0.0f);
  return [=] { add_into(a->data(), b->data(), kFloats); };
}
std::function<void()> updating() {
  TrainConfig config = parse_job("", "calibrate", {{"train.optimizer", "adamw"}}).train;
  std::shared_ptr<Optimizer> optimizer = make_optimizer(config);
  auto values =
      std::make_shared<std::vector<std::vector<float>>>(4, std::vector<float>(kFloats, 0.1f));
  return [=] {
    auto& v = *values;
    float* slots[] = {v[2].data(), v[3].data()};
    optimizer->update(v[0].data(), v[1].data(), slots, kFloats, {.step = 1, .lr = 1e-3});
  };
}

/// The rate of the file where offloaded values go if nothing else is said.
double tier_rate() {
  std::vector<std::byte> bytes(32 << 20);
  const FileTier tier("", static_cast<int64_t>(bytes.size()));
  SystemClock clock;
  const Time begin = clock.now();
  tier.write(0, bytes);
  tier.read(0, bytes);
  return 2.0 * static_cast<double>(bytes.size()) / seconds_since(clock, begin);
}

void print(const Calibration& c) {
  fmt::print("{:28} {:>12} {:>12}\n", fmt::format("{} core{}", c.cores, c.cores == 1 ? "" : "s"),
             "alone", "all at once");
  const auto row = [](const char* name, const char* unit, double alone, double all) {
    fmt::print("{:28} {:>12} {:>12}   each\n", name, rate_text(alone, unit), rate_text(all, unit));
  };

  // The first table has the rates of cores, the second the times of messages.
  row("matmul", "FLOP", c.matmul.front(), c.matmul.back());
  row("copy", "B", c.copy.alone, c.copy.all);
  row("fold", "B", c.fold.alone, c.fold.all);
  row("update (adamw)", "B", c.update.alone, c.update.all);
  fmt::print("{:28} {:>12}\n\n", "file", rate_text(c.tier, "B"));
  fmt::print("{:10}", "message");
  const auto names = names_where<TransportPart>([](const TransportPart& p) { return !p.gpu; });
  for (const MessageSample& s : c.rates_of(names.front()).messages)
    fmt::print(" {:>11}", bytes_text(s.bytes));
  fmt::print(" {:>11}\n", "flag");
  for (const std::string& name : names) {
    const TransportRates& rates = c.rates_of(name);
    fmt::print("{:10}", name);
    for (const MessageSample& s : rates.messages) fmt::print(" {:>8.1f} us", s.seconds * 1e6);
    fmt::print(" {:>11}\n", rates.flag > 0 ? fmt::format("{:.2f} us", rates.flag * 1e6) : "-");
  }

  // One machine cannot measure the network between several.
  fmt::print(
      "network    not measured: {:.0f} us and {} between hosts are assumed; the file "
      "can say better\n",
      message_seconds(c.rates_of(kNetwork), 1) * 1e6,
      rate_text(8e12 / message_seconds(c.rates_of(kNetwork), 1e12), "bit"));
}

}  // namespace

int calibrate_command(const std::string& out) {
  const Machine machine = this_machine();
  const std::string path = out.empty() ? calibration_path() : out;
  std::error_code error;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (out.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw Error(fmt::format("cannot make {}: {}", folder, error.message()));
  refuse_bad_output(path);
  choose_library_isa();
  Calibration c = default_calibration(DeviceKind::kCpu, machine.cores);
  c.source = path;
  c.measured = true;

  // Ranks that are processes come first: they are forked, which threads would be in the way of.
  for (bool processes : {true, false})
    for (const TransportPart& part : parts<TransportPart>())
      if (!part.gpu && part.processes == processes) {
        const std::string kind(part.name);
        c.transports[kind] = measure_transport(kind);
      }
  prepare_compute_thread(1);
  c.matmul = matmul_rates(machine.cores, kernels(fastest_path()).matmul);
  constexpr double kBytes = kFloats * sizeof(float);
  c.copy = rates_of(machine.cores, 2 * kBytes, copying);
  c.fold = rates_of(machine.cores, 3 * kBytes, folding);
  c.update = rates_of(machine.cores, 7 * kBytes, updating);
  c.tier = tier_rate();
  write_output(path, to_json(c));
  print(c);
  show(stdout, fmt::format("\n{}\n", path));
  return 0;
}

}  // namespace tutti
