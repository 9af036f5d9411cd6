// `tutti tokenize`, apart from how its arguments were read.
#pragma once

#include "app/cli/arguments.h"

namespace tutti {

/// Prints what was made and how fast; returns the exit code. Throws ConfigError for arguments that
/// do not go together, Error for files.
int tokenize_command(const TokenizeArguments& arguments);

}  // namespace tutti
