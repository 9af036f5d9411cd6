// `tutti tokenize`, apart from how its arguments were read.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

struct TokenizeArguments {
  std::string file;       ///< the text; "kjv": the King James text of the data folder
  int64_t vocab = 0;      ///< > 0: learn so many tokens and write a tokenizer.json
  std::string tokenizer;  ///< not empty: encode with it and write a file of tokens
  std::string out;
};

/// Prints what was made and how fast; returns the exit code. Throws ConfigError for arguments that
/// do not go together, Error for files.
int tokenize_command(const TokenizeArguments& arguments);

}  // namespace tutti
