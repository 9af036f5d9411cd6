// One function per command adds its options, and the table at the end lists the commands. Nothing
// here runs any of them.
#include "app/cli/commands.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>

#include "app/command_line.h"
#include "base/error.h"
#include "base/processor.h"
#include "config/job.h"

namespace tutti {

namespace {

constexpr uint64_t kMostRanks = 65536, kMostSteps = uint64_t{1} << 40;
/// An option that a shell filled in from a variable that was not set is not one that was left out.
const CLI::Validator kNotEmpty(
    [](const std::string& text) {
      return text.empty() ? std::string("it is empty (an unset variable?)") : "";
    },
    "");

CLI::Option* add_job(CLI::App& app, std::string& job) {
  return app.add_option("job", job, "built-in name or TOML file");
}

void add_settings(CLI::App& app, std::vector<std::string>& set, const char* help) {
  app.add_option("--set", set, help)->allow_extra_args(false);
}

void add_ranks(CLI::App& app, int64_t& ranks) {
  app.add_option("--ranks", ranks, "number of ranks")->transform(whole(0, kMostRanks));
}

void add_seed(CLI::App& app, uint64_t& seed) {
  app.add_option("--seed", seed, "of the draws")
      ->capture_default_str()
      ->transform(whole(0, UINT64_MAX));
}

void train_options(CLI::App& app, CommandArguments& a) {
  add_job(app, a.train.job)->capture_default_str();
  add_train_options(app, a.train);
}

void verify_options(CLI::App& app, CommandArguments& a) {
  add_job(app, a.train.job)->required();
  app.add_option("--steps", a.verify_steps, "steps on each layout (default: 3, on a GPU 6)")
      ->transform(whole(1, kMostSteps));
  add_settings(app, a.train.set, "section.key=value");
}

void explain_options(CLI::App& app, CommandArguments& a) {
  add_job(app, a.train.job)->required();
  add_settings(app, a.train.set, "section.key=value");
  add_ranks(app, a.train.ranks);
}

void plan_options(CLI::App& app, CommandArguments& a) {
  PlanArguments& plan = a.plan;
  add_job(app, plan.job)->required();
  app.add_option("--ranks", plan.ranks, "number of ranks (default: as a run would have)")
      ->transform(whole(1, kMostRanks));
  app.add_option("--memory", plan.memory,
                 "of a rank, like 16GiB (default: its share of this machine's; without the job's "
                 "GPU no limit)");
  app.add_option("--hosts", plan.hosts, "a file with a line a host: name [slots=N]");
  app.add_option("--picture", plan.picture, "an SVG file for the timeline of the best layout");
  app.add_option("--json", plan.json, "a file for all layouts that were simulated");
  add_settings(app, plan.set, "section.key=value; layout keys that are set are not searched");
  app.add_option("--calibration", plan.calibration,
                 "a file of `tutti calibrate --out`; a GPU's rates are assumed");
  app.add_flag("--quick", plan.quick, "run nothing of the model: go by what its segments declare");
}

void sample_options(CLI::App& app, CommandArguments& a) {
  app.add_option("run", a.run, "folder of the run")->required();
  app.add_option("--prompt", a.prompt, "what it starts from")->capture_default_str();
  app.add_option("--bytes", a.length, "how many bytes to draw")
      ->capture_default_str()
      ->transform(whole(0, uint64_t{1} << 30));
  app.add_option("--temperature", a.temperature, "1: as learned; lower: bolder")
      ->capture_default_str()
      ->transform(real(1e-3, 1e3));
  add_seed(app, a.seed);
}

void trace_options(CLI::App& app, CommandArguments& a) {
  app.add_option("run", a.run, "folder of the run")->required();
  app.add_option("--step", a.trace_step, "the step to draw (default: one from the middle)")
      ->transform(whole(0, kMostSteps));
}

void plot_options(CLI::App& app, CommandArguments& a) {
  app.add_option("runs", a.runs, "folders of the runs")->required();
  app.add_option("-o,--out", a.picture, "the SVG file")->capture_default_str();
  app.add_option("--metric", a.metric,
                 "loss, or a metric of the evaluations: accuracy, perplexity, ...")
      ->capture_default_str();
}

void crossval_options(CLI::App& app, CommandArguments& a) {
  add_job(app, a.train.job)->required();
  app.add_option("--folds", a.folds, "number of folds")
      ->capture_default_str()
      ->transform(whole(2, 1000));
  add_train_options(app, a.train, false);
}

void data_options(CLI::App& app, CommandArguments& a) {
  add_job(app, a.train.job)->required();
  add_ranks(app, a.train.ranks);
  add_settings(app, a.train.set, "section.key=value");
}

void generate_options(CLI::App& app, CommandArguments& a) {
  app.add_option("run", a.run, "folder of the run")->required();
  app.add_option("--count", a.count, "number of samples")
      ->capture_default_str()
      ->transform(whole(1, uint64_t{1} << 32));
  add_seed(app, a.seed);
  app.add_option("-o,--out", a.out, "the .npy file")->required();
}

void inspect_options(CLI::App& app, CommandArguments& a) {
  app.add_option("path", a.run, "a checkpoint, or a run for its last one")->required();
}

void diff_options(CLI::App& app, CommandArguments& a) {
  app.add_option("first", a.run, "a checkpoint or a run")->required();
  app.add_option("second", a.other, "a checkpoint or a run")->required();
}

void export_options(CLI::App& app, CommandArguments& a) {
  app.add_option("path", a.run, "a checkpoint, or a run for its last one")->required();
  app.add_option("out", a.out, "the safetensors file")->required();
}

void tokenize_options(CLI::App& app, CommandArguments& a) {
  TokenizeArguments& tokens = a.tokenize;
  app.add_option("file", tokens.file, "the text; kjv: the King James text")->required();
  app.add_option("--vocab", tokens.vocab, "learn so many tokens and write a tokenizer.json")
      ->transform(whole(256, 1 << 20));
  app.add_option("--tokenizer", tokens.tokenizer,
                 "encode with it (a tokenizer.json, or a folder with GPT-2's vocabulary) and write "
                 "a file of tokens");
  app.add_option("-o,--out", tokens.out, "the file to write")->required();
}

}  // namespace

const std::vector<CommandRow>& commands() {
  // The rows are in the order in which `tutti --help` lists them. A command with few options has
  // them in its row.
  static const std::vector<CommandRow> rows = {
      {"train", "train a job", Needs::kRanks, train_options},
      {"verify", "run a job over a set of layouts and compare the states", Needs::kTorch,
       verify_options},
      {"jobs", "list the built-in jobs", Needs::kNothing, [](CLI::App&, CommandArguments&) {}},
      {"doctor", "what this host offers, what it measures and what is missing", Needs::kTorch,
       [](CLI::App& app, CommandArguments& a) { app.add_flag("--json", a.json, "as JSON"); }},
      {"explain", "the complete job, every default, where each value came from", Needs::kNothing,
       explain_options},
      {"plan", "search the layouts of a job: predicted step time, memory, bytes per link",
       Needs::kTorch, plan_options},
      {"calibrate", "measure this machine for `plan`", Needs::kTorch,
       [](CLI::App& app, CommandArguments& a) {
         app.add_option("--out", a.out, "the file (default: in the user's cache folder)");
       }},
      {"sample", "text from a trained run", Needs::kTorch, sample_options},
      {"trace", "what every rank executed when, as a Perfetto trace and an SVG", Needs::kNothing,
       trace_options},
      {"plot", "loss curves of several runs on one picture", Needs::kNothing, plot_options},
      {"crossval", "k-fold cross-validation: the job once for every fold", Needs::kTorch,
       crossval_options},
      {"data", "what a job's data is: parts, classes, faults, statistics, order", Needs::kTorch,
       data_options},
      {"generate", "training samples from a trained autoencoder, as a .npy file", Needs::kTorch,
       generate_options},
      {"inspect", "what a checkpoint has: shapes, norms, hashes", Needs::kTorch, inspect_options},
      {"diff", "where two checkpoints, or what two runs saved, differ first", Needs::kTorch,
       diff_options},
      {"export", "the parameters of a checkpoint as one safetensors file", Needs::kTorch,
       export_options},
      {"tokenize", "learn a byte-level BPE tokenizer, or encode a text with one", Needs::kTorch,
       tokenize_options},
      {"docs", "the reference of all keys of a job, as Markdown", Needs::kNothing,
       [](CLI::App& app, CommandArguments& a) {
         app.add_option("-o,--out", a.out, "a file for it (default: it is printed)");
       }},
      {"help", "the commands, or the options of one", Needs::kNothing,
       [](CLI::App& app, CommandArguments& a) {
         app.add_option("command", a.about, "the command");
       }},
  };
  return rows;
}

void check_functions(const CommandFunctions& functions, std::initializer_list<Needs> needs) {
  for (const CommandRow& row : commands())
    if (std::find(needs.begin(), needs.end(), row.needs) != needs.end())
      TUTTI_CHECK(functions.contains(row.name), "the command {} has a row but no function",
                  row.name);
}

void add_train_options(CLI::App& app, TrainArguments& arguments, bool resumable) {
  app.add_option("--ranks", arguments.ranks,
                 "number of ranks (default: one per usable core, at most the lanes)")
      ->transform(whole(0, kMostRanks));
  app.add_option("--steps", arguments.steps, "stop at this step; changes nothing else")
      ->transform(whole(0, kMostSteps));
  add_settings(app, arguments.set, "section.key=value, a TOML value (a bare word is a string)");
  app.add_option("--out", arguments.out, "folder of the run (default: runs/<job>-<n>)")
      ->check(kNotEmpty);
  if (resumable)
    app.add_option("--resume", arguments.resume,
                   "go on with this run; only [layout] keys, device and precision may be set "
                   "with it")
        ->check(kNotEmpty);
  if (resumable)
    app.add_flag("--newest-valid", arguments.newest_valid,
                 "with --resume: go on from the newest checkpoint that is whole, and set those "
                 "after it aside")
        ->needs("--resume");
}

CommandLine::CommandLine(int argc, char** argv, const std::function<std::string()>& version)
    : app_("Tutti: distributed training whose result does not depend on the layout", "tutti") {
  app_.require_subcommand(0, 1);
  app_.set_version_flag("--version", version, "the version, its commit, LibTorch and instructions");
  for (const CommandRow& row : commands()) {
    CLI::App* command = app_.add_subcommand(row.name, row.help);
    row.options(*command, arguments_);
    command->callback([this, &row, command] {
      command_ = &row;
      arguments_.job_given = row.needs == Needs::kRanks && command->count("job") > 0;
    });
  }
  code_ = parse(app_, argc, argv);
}

std::string CommandLine::help(const std::string& about) const { return help_of(app_, about); }

std::string version_text(const std::string& build) {
  return fmt::format("tutti {}, LibTorch {}, {}", build, TORCH_VERSION, name_of(fastest_path()));
}

}  // namespace tutti
