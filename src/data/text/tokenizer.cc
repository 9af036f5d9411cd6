// The tokenizer around the encoder: finds added tokens, and lends each encoding thread a cache.
#include "data/text/tokenizer.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/file.h"
#include "data/text/bpe.h"
#include "data/text/bpe_encode.h"
#include "data/text/tokenizer_file.h"

namespace tutti {

struct Tokenizer::Impl {
  explicit Impl(Bpe parts) : bpe(std::move(parts)), encoder(bpe) {
    // Added tokens are looked for at every byte, so they are listed by their first byte.
    for (const Bpe::Added& added : bpe.added) {
      const std::string& token = bpe.tokens[added.id];
      starts[static_cast<uint8_t>(token[0])].push_back(added.id);
    }
    for (auto& ids : starts) {
      std::sort(ids.begin(), ids.end(),
                [&](int32_t a, int32_t b) { return bpe.tokens[a].size() > bpe.tokens[b].size(); });
    }
  }

  /// The leftmost added token in the text from `from` on, and of several at one place the longest;
  /// -1 if there is none. `at` becomes its place, or the end of the text.
  int32_t next_added(std::string_view text, size_t from, size_t& at) const {
    if (!bpe.added.empty()) {
      for (at = from; at < text.size(); ++at) {
        for (const int32_t id : starts[static_cast<uint8_t>(text[at])]) {
          if (text.substr(at).starts_with(bpe.tokens[id])) return id;
        }
      }
    }
    at = text.size();
    return -1;
  }

  /// A cache for one call of encode; caches are reused and never shared.
  std::unique_ptr<WordCache> borrow() {
    {
      const std::scoped_lock lock(mutex);
      if (!caches.empty()) {
        auto cache = std::move(caches.back());
        caches.pop_back();
        return cache;
      }
    }
    return std::make_unique<WordCache>();
  }
  void give_back(std::unique_ptr<WordCache> cache) {
    const std::scoped_lock lock(mutex);
    caches.push_back(std::move(cache));
  }

  Bpe bpe;
  BpeEncoder encoder;
  /// added tokens by their first byte, the longest first
  std::array<std::vector<int32_t>, 256> starts;
  std::mutex mutex;
  /// as many as there were threads that encoded at the same time
  std::vector<std::unique_ptr<WordCache>> caches;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::train(std::string_view text, int64_t vocab) {
  return Tokenizer(std::make_unique<Impl>(train_bpe(text, vocab)));
}

Tokenizer Tokenizer::load(const std::string& path) {
  return Tokenizer(std::make_unique<Impl>(read_tokenizer(path)));
}

std::string Tokenizer::json() const { return tokenizer_json(impl_->bpe); }
void Tokenizer::save(const std::string& path) const { write_file_atomic(path, json()); }

int64_t Tokenizer::vocab() const { return static_cast<int64_t>(impl_->bpe.tokens.size()); }

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens;

  // Text has roughly three to four bytes per token.
  tokens.reserve(text.size() / 3 + 8);
  auto cache = impl_->borrow();

  // Added tokens cut the text into pieces, which are encoded one by one.
  for (size_t from = 0; from < text.size();) {
    size_t at = 0;
    const int32_t added = impl_->next_added(text, from, at);
    impl_->encoder.encode(text.substr(from, at - from), *cache, tokens);
    if (added >= 0) {
      tokens.push_back(added);
      at += impl_->bpe.tokens[added].size();
    }
    from = at;
  }
  impl_->give_back(std::move(cache));
  return tokens;
}

std::string Tokenizer::decode(const std::vector<int32_t>& tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab()) {
      throw Error(
          fmt::format("token {} is outside of the vocabulary of {} tokens", token, vocab()));
    }
    text += impl_->bpe.tokens[token];
  }
  return text;
}

}  // namespace tutti
