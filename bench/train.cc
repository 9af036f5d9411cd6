// A resident trainer for interleaved benchmarks: `tutti-bench-train JOB [section.key=value]...`
// starts the ranks, then reads lines
//   STEPS [FOLDER]  runs that many steps, and with a folder saves there before the first and then
//             every ten; answers {"seconds": [...], "loss": x, "pids": [...], "flops": per step,
//             "stall": seconds that the rank that waited longest for its data waited, in all,
//             "whole": seconds from before the first save to the end of the last step}
//   save FOLDER  writes a checkpoint while no step runs; answers {"stall": seconds until a step could
//             begin, "copy": seconds of a memcpy of as many bytes, "seconds": of all, "path", "bytes"}
//   load PATH  reads it back; answers {"seconds": x}
//   matmul    measures what the ranks' matmuls reach together; answers {"gflops": x}
//   memory    answers {"ranks": [{"pid", "forecast", "total", and a kind's peak by its name}]}, in
//             bytes
// and sleeps in between.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/train_command.h"
#include "base/error.h"
#include "config/isa.h"
#include "launch/local.h"
#include "model/make_model.h"
#include "saving.h"
#include "state/load_checkpoint.h"
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

/// Of a rank's part of what all do together.
double seconds_of(Clock& clock, const std::function<void()>& part) {
  const Time begin = clock.now();
  part();
  return std::chrono::duration<double>(clock.now() - begin).count();
}

double longest(RankContext& context, double mine) {
  double all = 0;
  for (const Card& card :
       context.rendezvous.exchange({.bytes = std::to_string(mine)}, Deadline::never()))
    all = std::max(all, std::stod(card.bytes));
  return all;
}

/// All ranks copy their share at once, as a save does.
double copied(const Trainer& trainer, RankContext& context) {
  static std::vector<char> from, to;
  const auto bytes = static_cast<size_t>(trainer.accounts().peak(BufferKind::kCopy));
  if (from.size() != bytes) from.assign(bytes, 1), to.assign(bytes, 2);
  context.rendezvous.exchange({}, Deadline::never());
  return longest(context, seconds_of(context.clock, [&] {
                   std::memcpy(to.data(), from.data(), bytes);
                   from[0] = to[bytes - 1];  // the copy is used
                 }));
}

nlohmann::json save(Trainer& trainer, RankContext& context, const std::string& folder) {
  nlohmann::json answer{{"copy", copied(trainer, context)}};
  context.rendezvous.exchange({}, Deadline::never());
  std::string path;
  double stall = 0;
  const double all = seconds_of(context.clock, [&] {
    stall = seconds_of(context.clock, [&] { trainer.begin_save({.folder = folder}); });
    path = trainer.end_save();
  });
  int64_t floats = 0;
  for (const EntryShape& entry : trainer.units().entries()) floats += entry.size();
  answer["stall"] = longest(context, stall);
  answer["seconds"] = longest(context, all);
  answer["path"] = path;
  answer["bytes"] = floats * static_cast<int64_t>(sizeof(float));
  return answer;
}

nlohmann::json load(const Trainer& trainer, RankContext& context, const std::string& path) {
  context.rendezvous.exchange({}, Deadline::never());
  const double mine = seconds_of(context.clock, [&] {
    load_checkpoint(path, trainer.units().entries(), trainer.units().pieces());
  });
  return {{"seconds", longest(context, mine)}};
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
    std::istringstream words(order);
    std::string word, folder;
    words >> word >> folder;
    // The room for copies is there from the first of them on.
    if (!folder.empty() && trainer.accounts().peak(BufferKind::kCopy) == 0) trainer.prepare_saves();
    if (word == "save") {
      answer = save(trainer, context, folder);
    } else if (word == "load") {
      answer = load(trainer, context, folder);
    } else if (order == "matmul") {
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
      SavingSteps steps(trainer, folder, 10);
      answer["whole"] = longest(context, seconds_of(context.clock, [&] {
                                  steps.take(std::stoi(word), [&](const StepReport& report) {
                                    answer["seconds"].push_back(report.seconds);
                                    answer["loss"] = report.loss;
                                  });
                                }));
      steps.end();
      answer["flops"] = flops;
      answer["stall"] =
          longest(context, std::chrono::duration<double>(trainer.loader_stall() - stalled).count());
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
