// Records of tokens: from a text by a tokenizer, or from a file of tokens (data/text/tokenizer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/core/dataset.h"
#include "data/text/tokenizer.h"

namespace tutti {

/// Makes records of tokens. Record i is tokens [i*context, i*context + context + 1), split into
/// tokens and targets: int64 [context]. Throws Error naming `path` if there are too few tokens for
/// one record, or a token outside of `vocab` (model.vocab).
std::shared_ptr<const Dataset> open_tokens(std::vector<int32_t> tokens, int64_t context,
                                           int64_t vocab, const std::string& path);

/// A text's records, and the tokenizer that they were made with.
struct TokenSource {
  std::shared_ptr<const Dataset> data;
  std::shared_ptr<const Tokenizer> tokenizer;
};

/// Encodes a text. data.tokenizer "bpe" learns model.vocab tokens from it; anything else but
/// "bytes" is a path to load. Throws Error naming the file if its vocabulary is larger than
/// model.vocab, or if the text is empty or too short.
TokenSource open_text_tokens(const std::string& text, const Job& job, const std::string& path);

}  // namespace tutti
