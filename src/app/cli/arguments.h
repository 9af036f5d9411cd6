// The arguments of the commands, as values. app/cli/commands.h reads them, and the commands use
// them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct TrainArguments {
  std::string job = "gpt-kjv";    ///< built-in or file; ignored with resume
  std::string job_text;           ///< TOML instead of a name (a user's program)
  int64_t ranks = 0, steps = -1;  ///< 0, -1: not given
  std::vector<std::string> set;   ///< section.key=value
  std::string out, resume;
  std::string build;          ///< of this program
  bool newest_valid = false;  ///< resumed from the newest checkpoint that is whole
};

struct PlanArguments {
  std::string job;
  int64_t ranks = 0;  ///< 0: as the job says
  /// The memory that a rank may take, such as "16GiB". If it is empty, that is the rank's share of
  /// this machine's memory, without a limit if the GPU is not known.
  std::string memory;
  std::string hosts;             ///< a file with a line per host, "name [slots=N]"
  std::string picture;           ///< an SVG file to write
  std::string json;              ///< a file for all layouts (app/layouts/layouts_json.h)
  std::vector<std::string> set;  ///< section.key=value; layout keys that are set are not searched
  std::string calibration;       ///< empty: calibration_path()
  bool quick = false;            ///< nothing of the model is run: neither timed nor measured
};

struct TokenizeArguments {
  std::string file;       ///< the text; "kjv": the King James text of the data folder
  int64_t vocab = 0;      ///< > 0: learn so many tokens and write a tokenizer.json
  std::string tokenizer;  ///< not empty: encode with it and write a file of tokens
  std::string out;
};

/// The arguments of all commands. Each command reads its own.
struct CommandArguments {
  TrainArguments train;  ///< train, verify, explain, crossval, data
  PlanArguments plan;
  TokenizeArguments tokenize;
  bool job_given = false;    ///< train: not the default
  int64_t verify_steps = 0;  ///< 0: as many as are usual
  bool json = false;         ///< doctor
  std::string run;           ///< sample, trace, generate, inspect, export; diff: the first
  std::string other;         ///< diff: the second
  std::vector<std::string> runs;
  std::string metric = "loss", picture = "plot.svg";  ///< plot
  std::string prompt = "In the beginning";            ///< sample
  int64_t length = 400, trace_step = -1, folds = 5, count = 1000;
  double temperature = 0.8;
  uint64_t seed = 1;
  std::string out;    ///< calibrate, generate, docs, export: the file
  std::string about;  ///< help: the command
};

}  // namespace tutti
