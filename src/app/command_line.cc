// Wraps CLI11: numbers are read strictly, unknown words get the nearest known one, and every
// failure becomes one message and an exit code.
#include "app/command_line.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/text/lists.h"
#include "base/text/message.h"
#include "base/text/terminal.h"
#include "config/nearest.h"

namespace tutti {

namespace {

/// Whether all of the text is a number, which becomes `value`.
template <class T>
bool is_number(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

bool is_command(const CLI::App& app, const std::string& word) {
  for (const std::string& name : command_names(app))
    if (name == word) return true;
  return false;
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  return fmt::format("there is no command {}{}; `{} help` lists them", word,
                     did_you_mean(nearest(word, command_names(app))), app.get_name());
}

/// What is wrong with the arguments, in one line.
std::string fault_of(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  std::string fault = error.what();
  if (const auto left = app.remaining(/*recurse=*/true); !left.empty()) {
    const std::string word = left.front().substr(0, left.front().find('='));
    fault = word.starts_with('-') ? fmt::format("unknown option {}{}", word,
                                                did_you_mean(nearest(word, option_names(command))))
                                  : fmt::format("{} is one argument too many", word);
  }
  const std::string help =
      chosen.empty() ? app.get_name() + " --help" : app.get_name() + " help " + command.get_name();
  return fmt::format("{}; `{}` lists what it takes", fault, help);
}

/// A descriptor that was closed (`>&-`) would be given to the first file that is opened, and what
/// is printed would get into that file. Opened the wrong way round, its use fails as before.
void hold_standard_descriptors() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0)
      (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/// The code, unless what was printed got lost.
int ended(int code) {
  if (flushed() || code != 0) return code;
  return 1;
}

}  // namespace

CLI::Validator whole(uint64_t low, uint64_t high) {
  const auto check = [low, high](std::string& text) {
    uint64_t value = 0;
    if (!is_number(text, value) || value < low || value > high)
      return fmt::format("{} is not a whole number from {} to {}", text, low, high);
    text = fmt::format("{}", value);
    return std::string();
  };
  return {check, fmt::format("{} to {}", low, high)};
}

CLI::Validator real(double low, double high) {
  const auto check = [low, high](std::string& text) {
    double value = 0;
    if (is_number(text, value) && std::isfinite(value) && value >= low && value <= high)
      return std::string();
    return fmt::format("{} is not a number from {} to {}", text, low, high);
  };
  return {check, fmt::format("{} to {}", low, high)};
}

int parse(CLI::App& app, int argc, char** argv) {
  hold_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond ulimit -f then fails with a reason and a path
  const std::string word = argc > 1 ? argv[1] : "";
  if (!command_names(app).empty() && !word.empty() && !word.starts_with('-') &&
      !is_command(app, word)) {
    complain(unknown_command(app, word));
    return 2;
  }
  try {
    app.parse(argc, argv);
    return -1;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return ended(app.exit(error));  // --help, --version
    complain(fault_of(app, error));
    return 2;
  }
}

std::string help_of(const CLI::App& app, const std::string& command) {
  // By itself App::help tells of the command that was given, which is `help`.
  if (command.empty())
    return app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal);
  if (!is_command(app, command)) throw ConfigError({unknown_command(app, command)});
  return app.get_subcommand(command)->help(app.get_name());
}

int guarded(const std::function<int()>& f) {
  try {
    return ended(f());
  } catch (const ConfigError& e) {
    for (const std::string& fault : first_few(e.faults())) complain(fault);
    return 2;
  } catch (const std::system_error& e) {
    if (flushed()) complain(message_of(e));  // else it was about the output, and that is said
    return 1;
  } catch (const std::exception& e) {
    complain(message_of(e));
    return 1;
  }
}

}  // namespace tutti
