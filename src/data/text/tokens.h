// Records of tokens: from a text by a tokenizer, or from a file of tokens (data/text/tokenizer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/core/dataset.h"
#include "data/text/tokenizer.h"

namespace tutti {

/// Record i is tokens [i*context, i*context + context + 1), split into tokens and targets: int64
/// [context]. Throws Error naming `path`: too few tokens for one record, a token outside of `vocab`
/// (model.vocab).
std::shared_ptr<const Dataset> open_tokens(std::vector<int32_t> tokens, int64_t context,
                                           int64_t vocab, const std::string& path);

struct TokenSource {
  std::shared_ptr<const Dataset> data;
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// data.tokenizer "bpe" learns model.vocab tokens from the text, anything else but "bytes" is a
/// path to load; the text is then encoded. Throws Error naming the file: a vocabulary larger than
/// model.vocab, a text that is empty or too short.
TokenSource open_text_tokens(const std::string& text, const Job& job, const std::string& path);

}  // namespace tutti
