#include "app/tokenize.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "data/sources.h"
#include "data/tokenizer.h"

namespace tutti {
namespace {

void check(const TokenizeArguments& arguments) {
  std::vector<std::string> faults;
  if ((arguments.vocab != 0) == !arguments.tokenizer.empty()) {
    faults.emplace_back("tokenize needs either --vocab (learn a tokenizer) or --tokenizer (encode with one)");
  }
  if (arguments.vocab != 0 && arguments.vocab < 256) {
    faults.push_back(fmt::format("--vocab {}: at least 256, the bytes", arguments.vocab));
  }
  if (arguments.out.empty()) faults.emplace_back("tokenize needs -o, the file to write");
  if (!faults.empty()) throw ConfigError(std::move(faults));
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void learn(const TokenizeArguments& arguments, const std::string& text) {
  const Stopwatch watch;
  const Tokenizer tokenizer = Tokenizer::train(text, arguments.vocab);
  const double seconds = watch.seconds();
  tokenizer.save(arguments.out);
  fmt::print("{}: {} tokens learned from {:.2f} MB in {:.2f} s\n", arguments.out, tokenizer.vocab(),
             static_cast<double>(text.size()) / 1e6, seconds);
  if (tokenizer.vocab() < arguments.vocab) {
    fmt::print("the text has no pairs for the other {} of --vocab {}\n", arguments.vocab - tokenizer.vocab(),
               arguments.vocab);
  }
}

void encode(const TokenizeArguments& arguments, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::load(arguments.tokenizer);
  const Stopwatch watch;
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  const double seconds = watch.seconds();
  write_tokens(arguments.out, tokens, tokenizer.vocab());
  const auto bytes = static_cast<double>(text.size());
  fmt::print("{}: {} tokens of a vocabulary of {}, {:.2f} bytes per token, {:.1f} MB/s\n", arguments.out, tokens.size(),
             tokenizer.vocab(), bytes / static_cast<double>(std::max<size_t>(tokens.size(), 1)), bytes / 1e6 / seconds);
}

}  // namespace

int tokenize_command(const TokenizeArguments& arguments) {
  check(arguments);
  const std::string text = read_gz(resolve_path(arguments.file));
  if (arguments.vocab != 0) {
    learn(arguments, text);
  } else {
    encode(arguments, text);
  }
  return 0;
}

}  // namespace tutti
