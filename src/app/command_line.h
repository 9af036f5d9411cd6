// What every command has in common: strict numbers, one message for what cannot be read, and the
// exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

namespace tutti {

/// For Option::transform: decimal digits alone, from low to high. CLI11 by itself wraps negative
/// numbers around, takes the largest number for one that is too long and reads 010 as 8.
CLI::Validator whole(uint64_t low, uint64_t high);
/// A finite number from low to high.
CLI::Validator real(double low, double high);

/// Reads the arguments, which runs the command's callback. -1: it has run. Otherwise the exit code:
/// 0 after --help and --version, 2 for what cannot be read, with a message that names the nearest
/// option or command.
int parse(CLI::App& app, int argc, char** argv);
/// The help of one command or, without a name, of all. Throws ConfigError for a command that there
/// is not.
std::string help_of(const CLI::App& app, const std::string& command);

/// Runs f; a failure becomes its message on stderr and a code. So does output that could not be
/// written.
int guarded(const std::function<int()>& f);

}  // namespace tutti
