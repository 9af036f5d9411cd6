// Records of tokens, and the files that keep encoded text.
#include "data/text/tokens.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "config/reserved_words.h"

namespace tutti {
namespace {

// The head of a file of tokens; all numbers are little-endian.
constexpr std::string_view kMagic = "TUTTITOK";
constexpr int32_t kVersion = 1;
struct Header {
  char magic[8];
  int32_t version, bytes, vocab;
};
static_assert(sizeof(Header) == 20);

// Records are consecutive stretches; a target is the token after.
class Tokens final : public Dataset {
 public:
  Tokens(std::vector<int32_t> tokens, int64_t context)
      : tokens_(std::move(tokens)), context_(context) {}
  int64_t size() const override { return (static_cast<int64_t>(tokens_.size()) - 1) / context_; }
  void read(int64_t record, std::span<const at::Tensor> tensors, int64_t row) const override {
    const int32_t* from = tokens_.data() + record * context_;
    std::copy_n(from, context_, tensors[0].mutable_data_ptr<int64_t>() + row * context_);
    std::copy_n(from + 1, context_, tensors[1].mutable_data_ptr<int64_t>() + row * context_);
  }

 private:
  std::vector<int32_t> tokens_;
  int64_t context_;
};

// Tokens in a file have the narrowest type that the vocabulary allows.
template <typename Value>
void append(std::string& bytes, const std::vector<int32_t>& tokens) {
  const size_t begin = bytes.size();
  bytes.resize(begin + tokens.size() * sizeof(Value));
  char* to = bytes.data() + begin;
  for (const int32_t token : tokens) {
    const auto value = static_cast<Value>(token);
    std::memcpy(to, &value, sizeof(Value));
    to += sizeof(Value);
  }
}

template <typename Value>
std::vector<int32_t> values(std::string_view bytes) {
  std::vector<int32_t> tokens(bytes.size() / sizeof(Value));
  for (size_t i = 0; i < tokens.size(); ++i) {
    Value value;
    std::memcpy(&value, bytes.data() + i * sizeof(Value), sizeof(Value));
    tokens[i] = static_cast<int32_t>(value);
  }
  return tokens;
}

/// The place of the first token that is outside of `vocab`, or the end if none is.
auto outside(const std::vector<int32_t>& tokens, int64_t vocab) {
  return std::find_if(tokens.begin(), tokens.end(),
                      [vocab](int32_t token) { return token < 0 || token >= vocab; });
}

}  // namespace

void write_tokens(const std::string& path, const std::vector<int32_t>& tokens, int64_t vocab) {
  TUTTI_CHECK(vocab > 0 && vocab <= std::numeric_limits<int32_t>::max() &&
                  outside(tokens, vocab) == tokens.end(),
              "{}: a token that is not in the vocabulary of {}", path, vocab);
  Header header{{}, kVersion, vocab <= 0x10000 ? 2 : 4, static_cast<int32_t>(vocab)};
  std::copy(kMagic.begin(), kMagic.end(), header.magic);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  if (header.bytes == 2) {
    append<uint16_t>(bytes, tokens);
  } else {
    append<int32_t>(bytes, tokens);
  }
  write_output(path, bytes);
}

std::vector<int32_t> read_tokens(const std::string& path) {
  const std::string file = read_file(path);

  // The file is checked from its beginning on, so that the message names the first thing that
  // is wrong.
  Header header{};
  if (file.size() < kMagic.size() || !file.starts_with(kMagic)) {
    throw Error(fmt::format("{}: not a file of tokens (tutti tokenize makes one)", path));
  }
  if (file.size() < sizeof(header)) throw Error(fmt::format("{}: truncated in its header", path));
  std::memcpy(&header, file.data(), sizeof(header));
  if (header.version != kVersion)
    throw Error(fmt::format("{}: version {}, not {}", path, header.version, kVersion));
  if ((header.bytes != 2 && header.bytes != 4) || header.vocab < 1) {
    throw Error(fmt::format("{}: {} bytes per token and a vocabulary of {}", path, header.bytes,
                            header.vocab));
  }

  // The header is sound; the tokens must be whole and in its vocabulary.
  const std::string_view body = std::string_view(file).substr(sizeof(header));
  if (body.size() % static_cast<size_t>(header.bytes) != 0) {
    throw Error(fmt::format("{}: truncated inside of token {}", path,
                            body.size() / static_cast<size_t>(header.bytes)));
  }
  std::vector<int32_t> tokens = header.bytes == 2 ? values<uint16_t>(body) : values<int32_t>(body);
  if (const auto bad = outside(tokens, header.vocab); bad != tokens.end()) {
    throw Error(fmt::format("{}: token {} at place {} is outside of its vocabulary of {}", path,
                            *bad, bad - tokens.begin(), header.vocab));
  }
  return tokens;
}

std::shared_ptr<const Dataset> open_tokens(std::vector<int32_t> tokens, int64_t context,
                                           int64_t vocab, const std::string& path) {
  if (static_cast<int64_t>(tokens.size()) < context + 1) {
    throw Error(
        fmt::format("{}: {} tokens are too few for one record of model.context + 1 = {} tokens",
                    path, tokens.size(), context + 1));
  }
  if (const auto bad = outside(tokens, vocab); bad != tokens.end()) {
    throw Error(fmt::format("{}: token {} at place {} is outside model.vocab = {}", path, *bad,
                            bad - tokens.begin(), vocab));
  }
  return std::make_shared<Tokens>(std::move(tokens), context);
}

TokenSource open_text_tokens(const std::string& text, const Job& job, const std::string& path) {
  if (text.empty()) throw Error(fmt::format("{}: the file is empty", path));
  const int64_t vocab = job.model.vocab;
  const bool learned = learns_tokens(job.data);
  if (learned && vocab < 256) {
    throw Error(fmt::format("data.tokenizer = \"{}\" needs model.vocab of at least 256, not {}",
                            job.data.tokenizer, vocab));
  }

  // A vocabulary that is smaller than the model's is fine: the other ids are never used.
  auto tokenizer = std::make_shared<const Tokenizer>(learned ? Tokenizer::train(text, vocab)
                                                             : Tokenizer::load(job.data.tokenizer));
  if (tokenizer->vocab() > vocab) {
    throw Error(fmt::format("{}: its vocabulary of {} tokens is larger than model.vocab = {}",
                            job.data.tokenizer, tokenizer->vocab(), vocab));
  }
  return {open_tokens(tokenizer->encode(text), job.model.context, vocab, path), tokenizer};
}

}  // namespace tutti
