// The `tutti` command. It answers at once what needs no LibTorch, launches trainings, and hands
// everything else to the program next to it that loads LibTorch.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "app/cli/commands.h"
#include "app/cli/launch_train.h"
#include "app/cli/settle.h"
#include "app/command_line.h"
#include "app/commands/explain.h"
#include "app/commands/plot_command.h"
#include "app/commands/trace_command.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text/terminal.h"
#include "config/job.h"
#include "device/library.h"

namespace tutti {

extern const char* const kBuild;  // cmake/commit.cmake

namespace {

constexpr const char* kTorchProgram = "tutti-torch";

std::string torch_program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / kTorchProgram;
}

int become_torch_program(char** argv) {
  const std::string program = torch_program();
  std::fflush(nullptr);
  ::execv(program.c_str(), argv);
  throw Error(fmt::format("cannot start {}: {}", program, std::strerror(errno)));
}

int jobs_command() {
  for (const auto& [name, description] : builtin_jobs())
    fmt::print("{:12} {}\n", name, description);
  return 0;
}

/// Whether a job may run on a GPU.
bool may_use_gpu(const TrainArguments& arguments) {
  const Job job = load_job(arguments.job, parse_settings(arguments.set, arguments.ranks));
  return job.numerics.device != DeviceKind::kCpu;
}

int explain_here_or_there(const TrainArguments& arguments, char** argv) {
  // What GPUs there are only LibTorch's CUDA libraries can say.
  if (has_gpu_driver() && may_use_gpu(arguments)) return become_torch_program(argv);
  return explain_command(arguments);
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

int train(const CommandLine& line, int argc, char** argv) {
  const TrainArguments& arguments = line.arguments().train;
  if (!arguments.resume.empty() && line.arguments().job_given)
    throw ConfigError({fmt::format("--resume takes the job from {}: leave out {}", arguments.resume,
                                   arguments.job)});
  return launch_train(torch_program(), argc, argv);
}

int front_main(int argc, char** argv) {
  const CommandLine line(argc, argv, [] { return version_text(kBuild); });
  if (line.code() >= 0) return line.code();
  const CommandArguments& a = line.arguments();
  const auto print_help = [&] {
    show(stdout, line.help(a.about));
    return 0;
  };
  if (line.command() == nullptr) return guarded(print_help);

  // These commands need no LibTorch.
  const CommandFunctions light = {
      {"jobs", jobs_command},
      {"explain", [&] { return explain_here_or_there(a.train, argv); }},
      {"trace", [&] { return trace_command(a.run, a.trace_step); }},
      {"plot", [&] { return plot_command(a.runs, a.metric, a.picture); }},
      {"docs", [&] { return docs_command(a.out); }},
      {"help", print_help}};
  check_functions(light, {Needs::kNothing});
  return guarded([&] {
    switch (line.command()->needs) {
      case Needs::kNothing:
        return light.at(line.command()->name)();
      case Needs::kRanks:
        return train(line, argc, argv);
      case Needs::kTorch:
        break;
    }
    return become_torch_program(argv);
  });
}

}  // namespace

}  // namespace tutti

int main(int argc, char** argv) { return tutti::front_main(argc, argv); }
