// Trains and encodes for `./tutti bench`: arguments TEXT TOKENIZER, then lines
//   train VOCAB   {"seconds": ..., "merges": tokens beyond the bytes}
//   encode        {"seconds": ..., "tokens": ..., "sum": of (place + 1) * token modulo 2^32}
// The thread's own processor time, and a tokenizer that has seen the text before, as the peer's
// cache has.
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <iostream>
#include <sstream>

#include "base/file.h"
#include "data/text/tokenizer.h"

namespace {

double own_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: tutti-bench-tokenize TEXT TOKENIZER\n");
    return 2;
  }
  const std::string text = tutti::read_file(argv[1]);
  const tutti::Tokenizer tokenizer = tutti::Tokenizer::load(argv[2]);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    const double begin = own_time();
    if (what == "train") {
      int64_t vocab = 0;
      words >> vocab;
      const tutti::Tokenizer trained = tutti::Tokenizer::train(text, vocab);
      fmt::print("{{\"seconds\": {}, \"merges\": {}}}\n", own_time() - begin,
                 trained.vocab() - 256);
    } else {
      const std::vector<int32_t> tokens = tokenizer.encode(text);
      const double seconds = own_time() - begin;
      uint32_t sum = 0;
      for (size_t i = 0; i < tokens.size(); ++i)
        sum += static_cast<uint32_t>(i + 1) * static_cast<uint32_t>(tokens[i]);
      fmt::print("{{\"seconds\": {}, \"tokens\": {}, \"sum\": {}}}\n", seconds, tokens.size(), sum);
    }
    std::fflush(stdout);
  }
  return 0;
}
