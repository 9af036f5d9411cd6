// Learns a tokenizer or encodes a text. What is printed goes to stderr if the output itself goes to
// stdout.
#include "app/commands/tokenize.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text/seconds.h"
#include "base/text/terminal.h"
#include "data/core/sources.h"
#include "data/text/tokenizer.h"

namespace tutti {
namespace {

void check(const TokenizeArguments& arguments) {
  std::vector<std::string> faults;
  if ((arguments.vocab != 0) == !arguments.tokenizer.empty()) {
    faults.emplace_back(
        "tokenize needs either --vocab (learn a tokenizer) or --tokenizer (encode with one)");
  }
  if (arguments.vocab != 0 && arguments.vocab < 256) {
    faults.push_back(fmt::format("--vocab {}: at least 256, the bytes", arguments.vocab));
  }
  if (!faults.empty()) throw ConfigError(std::move(faults));
}

/// Prints what is not part of the output.
void say(const TokenizeArguments& arguments, const std::string& line) {
  show(is_stdout(arguments.out) ? stderr : stdout, line + "\n");
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void learn(const TokenizeArguments& arguments, const std::string& text) {
  const Stopwatch watch;
  const Tokenizer tokenizer = Tokenizer::train(text, arguments.vocab);
  const double seconds = watch.seconds();
  write_output(arguments.out, tokenizer.json());
  say(arguments, fmt::format("{}: {} tokens learned from {} in {}", arguments.out,
                             tokenizer.vocab(), bytes_text(text.size()), seconds_text(seconds)));
  if (tokenizer.vocab() < arguments.vocab) {
    say(arguments, fmt::format("the text has no pairs for the other {} of --vocab {}",
                               arguments.vocab - tokenizer.vocab(), arguments.vocab));
  }
}

void encode(const TokenizeArguments& arguments, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::load(arguments.tokenizer);
  const Stopwatch watch;
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  const double seconds = watch.seconds();
  write_tokens(arguments.out, tokens, tokenizer.vocab());
  const auto bytes = static_cast<double>(text.size());
  say(arguments, fmt::format("{}: {} tokens of a vocabulary of {}, {:.2f} bytes per token, {}",
                             arguments.out, tokens.size(), tokenizer.vocab(),
                             bytes / static_cast<double>(std::max<size_t>(tokens.size(), 1)),
                             rate_text(bytes / seconds, "B")));
}

}  // namespace

int tokenize_command(const TokenizeArguments& arguments) {
  check(arguments);
  refuse_bad_output(arguments.out);
  const std::string text = read_gz(resolve_path(arguments.file));
  if (arguments.vocab != 0) {
    learn(arguments, text);
  } else {
    encode(arguments, text);
  }
  return 0;
}

}  // namespace tutti
