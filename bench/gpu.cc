// A resident trainer for ./tutti bench gpu. `tutti-bench-gpu train JOB [section.key=value]...`
// reads lines
//   STEPS [FOLDER]  runs that many steps, and with a folder saves there before the first and then
//               every ten; answers {"seconds": of all steps, "losses": [...], "tokens": a step}
//   memory      answers {"tensors": peak bytes that the run accounts for, "taken": bytes of the
//               device that the process took since it first asked, with all that libraries keep for
//               themselves}
//   matmuls     answers {"rows": for src/cuda/matmul/lt_choices.cc: the fastest algorithm of every
//               matmul so far}
// `tutti-bench-gpu gaps JOB ...` is the same with CUPTI watching, and reads also
//   gaps STEPS  runs them; answers {"share": of the time without work on the device, "busy",
//               "span", "records", ..., "parts": [{"name": of a kernel, "seconds", "count"}, the
//               largest first]}
// `tutti-bench-gpu write FOLDER JOB ...` writes what a peer needs to train the same and ends:
//   job.json             sizes, optimizer and the learning rate of every step
//   weights.safetensors  the job's initial values
//   batches.bin          int64: for every step tokens [batch, context], then targets [batch,
//                        context]
#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/train_command.h"
#include "base/error.h"
#include "base/file.h"
#include "data/core/resample.h"
#include "data/load/loader.h"
#include "gaps.h"
#include "launch/local.h"
#include "model/make_model.h"
#include "optim/schedule.h"
#include "saving.h"
#include "state/safetensors.h"
#include "train/trainer.h"

namespace tutti {
namespace {

using nlohmann::json;

/// The CUDA runtime that LibTorch brought along.
void wait_for_device() {
  static const auto synchronize = reinterpret_cast<int (*)()>(
      ::dlsym(::dlopen("libcudart.so.13", RTLD_NOW), "cudaDeviceSynchronize"));
  if (synchronize == nullptr) throw Error("libcudart.so.13 has no cudaDeviceSynchronize");
  if (const int code = synchronize(); code != 0)
    throw Error(fmt::format("cudaDeviceSynchronize: error {}", code));
}

class Server {
 public:
  Server(const Job& job, RankContext& context, bool watched) : context_(context) {
    if (watched) gaps_.emplace();
    device_ = open_rank_device(job, context.rank);
    if (device_) free_before_ = device_.device->free_bytes();
    model_ = make_model(job);
    trainer_.emplace(job, model_, context, "", OwnPartition{}, device_ ? &device_ : nullptr);
    const Batch batch = batch_of(job.train);
    tokens_ =
        batch.lanes * batch.micro_batches * job.train.micro_batch_size * model_.tokens_per_sample;
  }

  void run() {
    for (std::string line; std::getline(std::cin, line);) {
      json answer;
      if (line == "memory") {
        answer["tensors"] =
            trainer_->accounts().peak_total() + (device_ ? device_.device->pool().peak : 0);
        answer["taken"] = device_ ? free_before_ - device_.device->free_bytes() : 0;
      } else if (line == "matmuls") {
        if (!device_ || device_.library->measure_matmuls == nullptr)
          throw Error("there are no matmuls to choose");
        answer["rows"] = device_.library->measure_matmuls();
      } else if (line.starts_with("gaps ")) {
        answer = idle(std::stoi(line.substr(5)));
      } else {
        std::istringstream words(line);
        int count = 0;
        std::string folder;
        words >> count >> folder;
        answer = steps(count, folder);
      }
      fmt::print("{}\n", answer.dump());
      std::fflush(stdout);
    }
  }

 private:
  json steps(int count, const std::string& folder = "") {
    json answer;
    SavingSteps saving(*trainer_, folder, 10);
    wait();
    const Time begin = context_.clock.now();
    saving.take(count, [&](const StepReport& report) { answer["losses"].push_back(report.loss); });
    wait();
    answer["seconds"] = std::chrono::duration<double>(context_.clock.now() - begin).count();
    answer["tokens"] = tokens_;
    saving.end();
    return answer;
  }

  json idle(int count) {
    if (!gaps_) throw Error("gaps are measured by `tutti-bench-gpu gaps`");
    wait();
    gaps_->begin();
    steps(count);
    const Idle idle = gaps_->end();
    json answer{{"share", idle.share()},   {"busy", idle.busy},       {"span", idle.span},
                {"records", idle.records}, {"dropped", idle.dropped}, {"longest", json::array()}};
    for (const Idle::Gap& gap : idle.longest)
      answer["longest"].push_back(
          {{"us", gap.seconds * 1e6}, {"before", gap.before}, {"after", gap.after}});
    for (const Idle::Part& part : idle.parts)
      answer["parts"].push_back(
          {{"name", part.name}, {"seconds", part.seconds}, {"count", part.count}});
    return answer;
  }

  void wait() const {
    if (device_) wait_for_device();
  }

  RankContext& context_;
  std::optional<GapRecorder> gaps_;  // before the first CUDA call
  RankDevice device_;
  int64_t free_before_ = 0, tokens_ = 0;
  Model model_;
  std::optional<Trainer> trainer_;
};

void write_weights(const Job& job, const Model& model, const std::string& path) {
  std::vector<TensorShape> tensors;
  std::vector<std::vector<float>> values;
  const ModelShape shape = describe(model);
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    size_t own = 0;
    for (const Parameter& parameter : model.blocks[b].parameters) {
      if (!parameter.shared_with.empty()) continue;
      const ParameterShape& p = shape.blocks[b].parameters[own++];
      values.emplace_back(p.size);
      initialise(parameter, p.name, job.train.seed, values.back());
      tensors.push_back({p.name, p.dims});
    }
  }
  write_safetensors(path, tensors, [&](size_t t) { return std::span<const float>(values[t]); });
}

void write_batches(const Job& job, const Model& model, const std::string& path) {
  SystemClock clock;
  const Split data = open_data(job);
  const Batch batch = batch_of(job.train);
  LoaderOptions options;
  options.data = data.train;
  options.borders = model.data;
  options.batch = batch;
  options.sequence = lane_by_lane({0, batch.lanes}, batch);
  options.order = make_order(job, *data.train);
  Loader loader(std::move(options), clock, nullptr);
  std::ofstream file(path, std::ios::binary);
  for (int64_t step = 0; step < job.train.steps; ++step) {
    std::string parts[2];  // tokens, targets of the whole batch
    for (int lane = 0; lane < batch.lanes; ++lane)
      for (int micro = 0; micro < batch.micro_batches; ++micro) {
        const auto& tensors = loader.next(step, lane, micro);
        for (int k = 0; k < 2; ++k)
          parts[k].append(static_cast<const char*>(tensors[k].const_data_ptr()),
                          tensors[k].nbytes());
      }
    for (const std::string& part : parts)
      file.write(part.data(), static_cast<std::streamsize>(part.size()));
  }
  if (!file.flush()) throw Error(fmt::format("{} could not be written", path));
}

void write_for_peer(const Job& job, const std::string& folder) {
  std::filesystem::create_directories(folder);
  const Model model = make_model(job);
  const TrainConfig& train = job.train;
  json out{{"layers", job.model.layers},
           {"width", job.model.width},
           {"heads", job.model.heads},
           {"vocab", job.model.vocab},
           {"context", job.model.context},
           {"batch", train.lanes * train.micro_batches * train.micro_batch_size},
           {"betas", {train.beta1, train.beta2}},
           {"eps", train.eps},
           {"weight_decay", train.weight_decay},
           {"clip", train.clip}};
  for (int64_t step = 0; step < train.steps; ++step)
    out["rates"].push_back(learning_rate(train, step));
  write_file_atomic(folder + "/job.json", out.dump());
  write_weights(job, model, folder + "/weights.safetensors");
  write_batches(job, model, folder + "/batches.bin");
}

int serve(const std::vector<std::string>& words) {
  const bool writes = !words.empty() && words[0] == "write",
             watched = !words.empty() && words[0] == "gaps";
  const size_t at = writes ? 2 : 1;
  if (words.size() <= at || (!writes && !watched && words[0] != "train"))
    throw Error("usage: tutti-bench-gpu train|gaps|write FOLDER JOB [section.key=value]...");
  TrainArguments arguments;
  arguments.job = words[at];
  arguments.set.assign(words.begin() + static_cast<ptrdiff_t>(at) + 1, words.end());
  arguments.set.emplace_back("layout.timeout=3600");
  arguments.ranks = 1;
  // Weights and batches are the same wherever they are made.
  if (writes)
    arguments.set.insert(arguments.set.end(),
                         {"numerics.device=cpu", "numerics.precision=float32"});
  const Job job = job_of(arguments);
  if (writes) {
    write_for_peer(job, words[1]);
    return 0;
  }
  LaunchOptions options;
  options.timeout = std::chrono::hours(1);
  const LaunchResult result =
      launch_local(options, [&](RankContext& context) { Server(job, context, watched).run(); });
  for (const std::string& failure : result.failures)
    fmt::print(stderr, "tutti-bench-gpu: {}\n", failure);
  return result.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  try {
    return tutti::serve(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const tutti::ConfigError& e) {
    for (const std::string& fault : e.faults()) fmt::print(stderr, "tutti-bench-gpu: {}\n", fault);
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "tutti-bench-gpu: {}\n", e.what());
    return 1;
  }
}
