// Vocabulary files: tokenizer.json of the tokenizers package, and GPT-2's two files.
#pragma once

#include <string>

#include "data/text/bpe.h"

namespace tutti {

/// Reads what Tokenizer::load describes. What would make the package encode differently from us is
/// a fault and never ignored.
Bpe read_tokenizer(const std::string& path);

/// The text of a tokenizer.json.
std::string tokenizer_json(const Bpe& bpe);

}  // namespace tutti
