// The `tutti` command: reads arguments, calls one function per command, and turns every failure
// into a message and an exit code.
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "app/command_line.h"
#include "app/commands/crossval.h"
#include "app/commands/data_command.h"
#include "app/commands/generate.h"
#include "app/commands/plot_command.h"
#include "app/commands/tokenize.h"
#include "app/doctor/doctor.h"
#include "app/layouts/calibrate_command.h"
#include "app/layouts/plan_command.h"
#include "app/layouts/verify.h"
#include "app/train_command.h"
#include "app/tutti_main.h"
#include "base/error.h"
#include "base/file.h"
#include "base/terminal.h"
#include "exec/trace.h"
#include "model/make_model.h"
#include "tensor/threads.h"
#include "train/run_folder.h"
#include "train/sample.h"
#include "train/trained.h"

namespace tutti {

namespace {

constexpr uint64_t kMostRanks = 65536, kMostSteps = uint64_t{1} << 40;
/// An option that a shell filled in from a variable that was not set is not one that was left out.
const CLI::Validator kNotEmpty(
    [](const std::string& text) {
      return text.empty() ? std::string("it is empty (an unset variable?)") : "";
    },
    "");

void add_train_options(CLI::App& app, TrainArguments& arguments, bool resumable = true) {
  app.add_option("--ranks", arguments.ranks,
                 "number of ranks (default: one per usable core, at most the lanes)")
      ->transform(whole(0, kMostRanks));
  app.add_option("--steps", arguments.steps, "stop at this step; changes nothing else")
      ->transform(whole(0, kMostSteps));
  app.add_option("--set", arguments.set,
                 "section.key=value, a TOML value (a bare word is a string)")
      ->allow_extra_args(false);
  app.add_option("--out", arguments.out, "folder of the run (default: runs/<job>-<n>)")
      ->check(kNotEmpty);
  if (resumable)
    app.add_option(
           "--resume", arguments.resume,
           "go on with this run; only [layout] keys, device and precision may be set beside it")
        ->check(kNotEmpty);
}

int jobs_command() {
  for (const auto& [name, description] : builtin_jobs())
    fmt::print("{:12} {}\n", name, description);
  return 0;
}

int sample_command(const std::string& path, const std::string& prompt, int64_t length,
                   double temperature, uint64_t seed) {
  RunFolder folder = open_run(path);
  const Job job = job_on_host(path);
  if (job.model.kind != "gpt")
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

/// Those that every rank has kept, ascending: records are bounded, and on a device not all steps
/// are traced.
std::vector<uint64_t> traced_steps(const std::vector<TraceEvent>& events) {
  std::map<uint64_t, std::set<int>> ranks;
  std::set<int> all;
  for (const TraceEvent& event : events) {
    ranks[event.step].insert(event.rank);
    all.insert(event.rank);
  }
  std::vector<uint64_t> steps;
  for (const auto& [step, those] : ranks)
    if (those == all) steps.push_back(step);
  return steps;
}

/// Merges the ranks' records into trace.json (Chrome, Perfetto) and trace.svg (the step in the
/// middle of what was kept).
int trace_command(const std::string& path, int64_t step) {
  RunFolder folder = open_run(path);
  std::vector<TraceEvent> events;
  for (int rank = 0; path_exists(folder.trace(rank)); ++rank) {
    std::ifstream lines(folder.trace(rank));
    for (std::string line; std::getline(lines, line);) {
      try {
        events.push_back(parse_trace_line(line));
      } catch (const Error& error) {
        throw Error(fmt::format("{}: {}", folder.trace(rank), error.what()));
      }
    }
  }
  if (events.empty())
    throw Error(fmt::format("{}: it has no trace (a run writes it when it ends)", path));
  const std::vector<uint64_t> steps = traced_steps(events);
  if (steps.empty()) throw Error(fmt::format("{}: no step was traced on all ranks", path));
  if (step >= 0 && !std::binary_search(steps.begin(), steps.end(), static_cast<uint64_t>(step)))
    throw ConfigError({fmt::format(
        "--step {}: steps {} to {} were traced on all ranks{}", step, steps.front(), steps.back(),
        steps.back() - steps.front() >= steps.size() ? ", not every one" : "")});
  const uint64_t shown = step >= 0 ? static_cast<uint64_t>(step) : steps[steps.size() / 2];
  write_file_atomic(folder.path + "/trace.json", chrome_trace(events));
  write_file_atomic(folder.path + "/trace.svg", svg_trace(events, shown));
  show(stdout,
       fmt::format("{}/trace.json  {} instructions, for ui.perfetto.dev or chrome://tracing\n",
                   folder.path, events.size()));
  show(stdout, fmt::format("{}/trace.svg   step {}\n", folder.path, shown));
  return 0;
}

int docs_command(const std::string& out) {
  if (out.empty()) {
    show(stdout, job_reference());
  } else {
    write_output(out, job_reference());
    if (!is_stdout(out)) show(stdout, out + "\n");
  }
  return 0;
}

/// "tutti 0.1.0 (commit abc1234), LibTorch 2.11.0, avx512": what two runs must agree on to have the
/// same bits.
std::string version_text(const std::string& build) {
  const Machine machine = this_machine();
  return fmt::format("tutti {}, LibTorch {}, {}", build, TORCH_VERSION,
                     machine.avx512 ? "avx512"
                     : machine.avx2 ? "avx2"
                                    : "no AVX2");
}

}  // namespace

int train_main(int argc, char** argv, const MakeModel& make_model, const std::string& job,
               const OwnPartition& partition) {
  CLI::App app("trains one model on any number of ranks");
  TrainArguments arguments;
  arguments.job_text = job;
  add_train_options(app, arguments);
  if (int code = parse(app, argc, argv); code >= 0) return code;
  return guarded([&] { return train_command(arguments, make_model, partition); });
}

int tutti_main(int argc, char** argv, const std::string& build) {
  CLI::App app("Tutti: distributed training whose result does not depend on the layout", "tutti");
  app.require_subcommand(0, 1);
  app.set_version_flag(
      "--version", [&build] { return version_text(build); },
      "the version, its commit, LibTorch and instructions");
  int code = 0;
  auto on = [&code](CLI::App* command, const std::function<int()>& f) {
    command->callback([&code, f] { code = guarded(f); });
  };
  auto own_model = [](const Job& job) { return make_model(job); };

  TrainArguments arguments;
  CLI::App* train = app.add_subcommand("train", "train a job");
  train->add_option("job", arguments.job, "built-in name or TOML file")->capture_default_str();
  add_train_options(*train, arguments);
  on(train, [&] {
    if (!arguments.resume.empty() && train->count("job") > 0)
      throw ConfigError({fmt::format("--resume takes the job from {}: leave out {}",
                                     arguments.resume, arguments.job)});
    return train_command(arguments, own_model);
  });

  int64_t verify_steps = 0;
  CLI::App* verify =
      app.add_subcommand("verify", "run a job over a set of layouts and compare the states");
  verify->add_option("job", arguments.job, "built-in name or TOML file")->required();
  verify->add_option("--steps", verify_steps, "steps on each layout (default: 3, on a GPU 6)")
      ->transform(whole(1, kMostSteps));
  verify->add_option("--set", arguments.set, "section.key=value")->allow_extra_args(false);
  on(verify, [&] { return verify_command(arguments, verify_steps, own_model); });

  on(app.add_subcommand("jobs", "list the built-in jobs"), jobs_command);

  bool as_json = false;
  CLI::App* doctor =
      app.add_subcommand("doctor", "what this host offers, what it measures and what is missing");
  doctor->add_flag("--json", as_json, "as JSON");
  on(doctor, [&] { return doctor_command(as_json); });

  CLI::App* explain_job =
      app.add_subcommand("explain", "the complete job, every default, where each value came from");
  explain_job->add_option("job", arguments.job, "built-in name or TOML file")->required();
  explain_job->add_option("--set", arguments.set, "section.key=value")->allow_extra_args(false);
  explain_job->add_option("--ranks", arguments.ranks, "number of ranks")
      ->transform(whole(0, kMostRanks));
  on(explain_job, [&] {
    const Prepared prepared = prepare(arguments, /*elsewhere=*/true);
    show(stdout, explain(prepared.job));
    if (prepared.job.numerics.device == "cuda" && !prepared.machine.no_gpu.empty())
      complain(fmt::format("it would not run here: {}", prepared.machine.no_gpu));
    return 0;
  });

  PlanArguments plans;
  CLI::App* plan = app.add_subcommand(
      "plan", "search the layouts of a job: predicted step time, memory, bytes per link");
  plan->add_option("job", plans.job, "built-in name or TOML file")->required();
  plan->add_option("--ranks", plans.ranks, "number of ranks (default: as a run would have)")
      ->transform(whole(1, kMostRanks));
  plan->add_option("--memory", plans.memory,
                   "of a rank, like 16GiB (default: its share of this machine's; without the job's "
                   "GPU no limit)");
  plan->add_option("--hosts", plans.hosts, "a file with a line a host: name [slots=N]");
  plan->add_option("--picture", plans.picture, "an SVG file for the timeline of the best layout");
  plan->add_option("--json", plans.json, "a file for all layouts that were simulated");
  plan->add_option("--set", plans.set,
                   "section.key=value; layout keys that are set are not searched")
      ->allow_extra_args(false);
  plan->add_option("--calibration", plans.calibration,
                   "a file of `tutti calibrate --out`; a GPU's rates are assumed");
  plan->add_flag("--quick", plans.quick,
                 "run nothing of the model: go by what its segments declare");
  on(plan, [&] { return plan_command(plans, own_model); });

  std::string calibration;
  CLI::App* calibrate = app.add_subcommand("calibrate", "measure this machine for `plan`");
  calibrate->add_option("--out", calibration, "the file (default: in the user's cache folder)");
  on(calibrate, [&] { return calibrate_command(calibration); });

  std::string path, prompt = "In the beginning";
  int64_t length = 400, step = -1;
  double temperature = 0.8;
  uint64_t seed = 1;
  CLI::App* sample = app.add_subcommand("sample", "text from a trained run");
  sample->add_option("run", path, "folder of the run")->required();
  sample->add_option("--prompt", prompt, "what it starts from")->capture_default_str();
  sample->add_option("--bytes", length, "how many bytes to draw")
      ->capture_default_str()
      ->transform(whole(0, uint64_t{1} << 30));
  sample->add_option("--temperature", temperature, "1: as learned; lower: bolder")
      ->capture_default_str()
      ->transform(real(1e-3, 1e3));
  sample->add_option("--seed", seed, "of the draws")
      ->capture_default_str()
      ->transform(whole(0, UINT64_MAX));
  on(sample, [&] { return sample_command(path, prompt, length, temperature, seed); });

  CLI::App* trace =
      app.add_subcommand("trace", "what every rank executed when, as a Perfetto trace and an SVG");
  trace->add_option("run", path, "folder of the run")->required();
  trace->add_option("--step", step, "the step to draw (default: one from the middle)")
      ->transform(whole(0, kMostSteps));
  on(trace, [&] { return trace_command(path, step); });

  std::vector<std::string> runs;
  std::string metric = "loss", out = "plot.svg";
  CLI::App* plot = app.add_subcommand("plot", "loss curves of several runs on one picture");
  plot->add_option("runs", runs, "folders of the runs")->required();
  plot->add_option("-o,--out", out, "the SVG file")->capture_default_str();
  plot->add_option("--metric", metric,
                   "loss, or a metric of the evaluations: accuracy, perplexity, ...")
      ->capture_default_str();
  on(plot, [&] { return plot_command(runs, metric, out); });

  int64_t folds = 5;
  CLI::App* crossval =
      app.add_subcommand("crossval", "k-fold cross-validation: the job once for every fold");
  crossval->add_option("job", arguments.job, "built-in name or TOML file")->required();
  crossval->add_option("--folds", folds, "number of folds")
      ->capture_default_str()
      ->transform(whole(2, 1000));
  add_train_options(*crossval, arguments, false);
  on(crossval, [&] { return crossval_command(arguments, folds, own_model); });

  CLI::App* data =
      app.add_subcommand("data", "what a job's data is: parts, classes, faults, statistics, order");
  data->add_option("job", arguments.job, "built-in name or TOML file")->required();
  data->add_option("--ranks", arguments.ranks, "number of ranks")->transform(whole(0, kMostRanks));
  data->add_option("--set", arguments.set, "section.key=value")->allow_extra_args(false);
  on(data, [&] { return data_command(arguments); });

  int64_t count = 1000;
  CLI::App* generate =
      app.add_subcommand("generate", "training samples from a trained autoencoder, as a .npy file");
  generate->add_option("run", path, "folder of the run")->required();
  generate->add_option("--count", count, "number of samples")
      ->capture_default_str()
      ->transform(whole(1, uint64_t{1} << 32));
  generate->add_option("--seed", seed, "of the draws")
      ->capture_default_str()
      ->transform(whole(0, UINT64_MAX));
  generate->add_option("-o,--out", out, "the .npy file")->required();
  on(generate, [&] { return generate_command(path, count, seed, out); });

  TokenizeArguments tokens;
  CLI::App* tokenize =
      app.add_subcommand("tokenize", "learn a byte-level BPE tokenizer, or encode a text with one");
  tokenize->add_option("file", tokens.file, "the text; kjv: the King James text")->required();
  tokenize->add_option("--vocab", tokens.vocab, "learn so many tokens and write a tokenizer.json")
      ->transform(whole(256, 1 << 20));
  tokenize->add_option("--tokenizer", tokens.tokenizer,
                       "encode with it (a tokenizer.json, or a folder with GPT-2's "
                       "vocabulary) and write a file of tokens");
  tokenize->add_option("-o,--out", tokens.out, "the file to write")->required();
  on(tokenize, [&] { return tokenize_command(tokens); });

  std::string reference;
  CLI::App* docs = app.add_subcommand("docs", "the reference of all keys of a job, as Markdown");
  docs->add_option("-o,--out", reference, "a file for it (default: it is printed)");
  on(docs, [&] { return docs_command(reference); });

  std::string about;
  CLI::App* help = app.add_subcommand("help", "the commands, or the options of one");
  help->add_option("command", about, "the command");
  const auto print_help = [&] {
    show(stdout, help_of(app, about));
    return 0;
  };
  on(help, print_help);

  if (int refused = parse(app, argc, argv); refused >= 0) return refused;
  return app.get_subcommands().empty() ? guarded(print_help) : code;
}

}  // namespace tutti
