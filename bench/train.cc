// A resident trainer for interleaved benchmarks: `tutti-bench-train JOB [section.key=value]...`
// starts the ranks, then reads lines
//   STEPS     runs that many steps; answers {"seconds": [...], "loss": x, "pids": [...], "flops":
//             per step, "stall": seconds that the rank that waited longest for its data waited, in
//             all}
//   matmul    measures what the ranks' matmuls reach together; answers {"gflops": x}
//   memory    answers {"ranks": [{"pid", "forecast", "total", and a kind's peak by its name}]}, in
//             bytes
// and sleeps in between.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/train_command.h"
#include "base/error.h"
#include "config/isa.h"
#include "launch/local.h"
#include "model/make_model.h"
#include "tensor/kernels.h"
#include "tensor/rate.h"
#include "train/trainer.h"

namespace tutti {
namespace {

nlohmann::json memory_of(const Trainer& trainer) {
  const Accounts& accounts = trainer.accounts();
  nlohmann::json memory{{"pid", ::getpid()},
                        {"forecast", trainer.forecast_bytes()},
                        {"total", accounts.peak_total()}};
  for (int k = 0; k < kBufferKinds; ++k) {
    const auto kind = static_cast<BufferKind>(k);
    memory[kind_name(kind)] = accounts.peak(kind);
  }
  return memory;
}

void serve(const Job& job, RankContext& context) {
  Model model = make_model(job);
  Trainer trainer(job, model, context, "");
  const Matmul& matmul = kernels(path_of(job.layout), job.numerics.matmul).matmul;
  double flops =
      trainer.shape().flops() * batch_of(job.train).lanes * batch_of(job.train).micro_batches;
  while (true) {
    std::string line;
    if (context.rank == 0 && !std::getline(std::cin, line)) line = "end";
    auto cards = context.rendezvous.exchange(
        {.bytes = context.rank == 0 ? line : std::to_string(::getpid())}, Deadline::never());
    std::string order = cards[0].bytes;
    if (order == "end") return;
    nlohmann::json answer;
    if (order == "matmul") {
      auto rates = context.rendezvous.exchange(
          {.bytes = std::to_string(matmul_gflops(matmul, context.clock))}, Deadline::never());
      double sum = 0;
      for (const Card& card : rates) sum += std::stod(card.bytes);
      answer["gflops"] = sum;
    } else if (order == "memory") {
      for (const Card& card :
           context.rendezvous.exchange({.bytes = memory_of(trainer).dump()}, Deadline::never())) {
        answer["ranks"].push_back(nlohmann::json::parse(card.bytes));
      }
    } else {
      answer["pids"] = {::getpid()};
      for (int r = 1; r < context.size; ++r) answer["pids"].push_back(std::stoi(cards[r].bytes));
      const Duration stalled = trainer.loader_stall();
      for (int n = std::stoi(order); n > 0; --n) {
        StepReport report = trainer.step();
        answer["seconds"].push_back(report.seconds);
        answer["loss"] = report.loss;
      }
      answer["flops"] = flops;
      const double stall = std::chrono::duration<double>(trainer.loader_stall() - stalled).count();
      double longest = 0;
      for (const Card& card :
           context.rendezvous.exchange({.bytes = std::to_string(stall)}, Deadline::never())) {
        longest = std::max(longest, std::stod(card.bytes));
      }
      answer["stall"] = longest;
    }
    if (context.rank == 0) fmt::print("{}\n", answer.dump()), std::fflush(stdout);
  }
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  using namespace tutti;
  try {
    TrainArguments arguments;
    arguments.job = argc > 1 ? argv[1] : "gpt-bench";
    for (int i = 2; i < argc; ++i) arguments.set.emplace_back(argv[i]);
    arguments.set.emplace_back("layout.timeout=3600");
    arguments.set.emplace_back("numerics.device=cpu");
    Job job = job_of(arguments);
    LaunchOptions options;
    options.ranks = static_cast<int>(job.layout.ranks);
    options.threads = job.layout.workers == Workers::kThread;
    options.timeout = std::chrono::hours(1);
    LaunchResult result = launch_local(options, [&](RankContext& context) { serve(job, context); });
    for (const std::string& failure : result.failures)
      fmt::print(stderr, "tutti-bench-train: {}\n", failure);
    return result.ok() ? 0 : 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "tutti-bench-train: {}\n", e.what());
    return 1;
  }
}
