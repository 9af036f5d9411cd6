// The commands of `tutti`, as one table: name, one line of help, what may be said to it, and what
// it needs to run. A command is added by a row here and a function in app/front/main.cc or, where
// it needs LibTorch, in app/tutti.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "app/cli/arguments.h"

namespace tutti {

enum class Needs {
  kNothing,  ///< runs in the light program, at once
  kTorch,    ///< runs in the program that loads LibTorch
  kRanks,    ///< is launched by the light program, on ranks of the other one
};

struct CommandRow {
  const char* name;
  const char* help;
  Needs needs;
  void (*options)(CLI::App& app, CommandArguments& arguments);
};
const std::vector<CommandRow>& commands();

/// What a program does for the commands that it runs, by their names.
using CommandFunctions = std::map<std::string, std::function<int()>>;
/// Aborts, naming the command, if one whose needs are among these has a row and no function.
void check_functions(const CommandFunctions& functions, std::initializer_list<Needs> needs);

void add_train_options(CLI::App& app, TrainArguments& arguments, bool resumable = true);

/// A command line, read.
class CommandLine {
 public:
  /// `version`: what --version says.
  CommandLine(int argc, char** argv, const std::function<std::string()>& version);
  /// The exit code where there is nothing left to do: after --version and --help, or 2 with a
  /// message for what cannot be read. Else -1.
  int code() const { return code_; }
  /// Null: none was named.
  const CommandRow* command() const { return command_; }
  const CommandArguments& arguments() const { return arguments_; }
  std::string help(const std::string& about) const;

 private:
  CommandArguments arguments_;
  CLI::App app_;
  const CommandRow* command_ = nullptr;
  int code_ = -1;
};

/// "tutti 0.1.0 (commit abc1234), LibTorch 2.11.0, avx512": what two runs must agree on to have the
/// same bits.
std::string version_text(const std::string& build);

}  // namespace tutti
