// The program that loads LibTorch: the commands that need it, and the ranks of a training. The
// `tutti` command (app/front/main.cc) executes it.
#include <fmt/format.h>

#include <cstdlib>

#include "app/cli/commands.h"
#include "app/cli/launch_train.h"
#include "app/command_line.h"
#include "app/commands/checkpoint_commands.h"
#include "app/commands/crossval.h"
#include "app/commands/data_command.h"
#include "app/commands/explain.h"
#include "app/commands/generate.h"
#include "app/commands/tokenize.h"
#include "app/doctor/doctor.h"
#include "app/layouts/calibrate_command.h"
#include "app/layouts/plan_command.h"
#include "app/layouts/verify.h"
#include "app/train_command.h"
#include "app/tutti_main.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text/terminal.h"
#include "config/job_parts.h"
#include "infer/sampler.h"
#include "infer/trained.h"
#include "launch/rank_host.h"
#include "model/make_model.h"
#include "tensor/threads.h"
#include "train/run_folder.h"

namespace tutti {

namespace {

/// Whether this process settles and hosts a training, or runs one whose ranks are its threads,
/// instead of launching it.
bool hosts_ranks() { return HostedProgram::is_hosted() || std::getenv(kAlone) != nullptr; }

int sample_command(const std::string& path, const std::string& prompt, int64_t length,
                   double temperature, uint64_t seed) {
  RunFolder folder = open_run(path);
  const Job job = job_on_host(path);
  if (!model_part(job).sequences)
    throw Error(fmt::format("{}: a model of kind {} writes no text", path, job.model.kind));
  prepare_compute_thread(1);
  const Trained trained(path, 1, job.numerics, make_model);
  std::shared_ptr<const Tokenizer> tokenizer;
  if (path_exists(folder.tokenizer()))
    tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(folder.tokenizer()));
  show(
      stdout,
      Sampler(job, make_model, trained.units(), tokenizer).text(prompt, length, seed, temperature) +
          "\n");
  return 0;
}

}  // namespace

int train_main(int argc, char** argv, const MakeModel& make_model, const std::string& job,
               const OwnPartition& partition) {
  CLI::App app("trains one model on any number of ranks");
  TrainArguments arguments;
  arguments.job_text = job;
  add_train_options(app, arguments);
  if (int code = parse(app, argc, argv); code >= 0) return code;
  return guarded([&] {
    if (!hosts_ranks()) return launch_train("/proc/self/exe", argc, argv);
    return train_command(arguments, make_model, partition);
  });
}

int tutti_main(int argc, char** argv, const std::string& build) {
  const CommandLine line(argc, argv, [&build] { return version_text(build); });
  if (line.code() >= 0) return line.code();
  CommandArguments a = line.arguments();
  a.train.build = build;
  const auto own_model = [](const Job& job) { return make_model(job); };

  // What each command runs. Those that need no LibTorch are in the front, app/front.
  const CommandFunctions here = {
      {"train",
       [&] {
         if (!hosts_ranks()) return launch_train("/proc/self/exe", argc, argv);
         return train_command(a.train, own_model);
       }},
      {"verify", [&] { return verify_command(a.train, a.verify_steps, own_model); }},
      {"doctor", [&] { return doctor_command(a.json); }},
      {"explain", [&] { return explain_command(a.train); }},
      {"plan", [&] { return plan_command(a.plan, own_model); }},
      {"calibrate", [&] { return calibrate_command(a.out); }},
      {"sample", [&] { return sample_command(a.run, a.prompt, a.length, a.temperature, a.seed); }},
      {"crossval", [&] { return crossval_command(a.train, a.folds, own_model); }},
      {"data", [&] { return data_command(a.train); }},
      {"generate", [&] { return generate_command(a.run, a.count, a.seed, a.out); }},
      {"inspect", [&] { return inspect_command(a.run); }},
      {"diff", [&] { return diff_command(a.run, a.other); }},
      {"export", [&] { return export_command(a.run, a.out); }},
      {"tokenize", [&] { return tokenize_command(a.tokenize); }}};
  check_functions(here, {Needs::kTorch, Needs::kRanks});
  return guarded([&] {
    const auto found = line.command() == nullptr ? here.end() : here.find(line.command()->name);
    if (found == here.end())
      throw ConfigError({"this program is executed by the command `tutti`, which has the rest"});
    return found->second();
  });
}

}  // namespace tutti
