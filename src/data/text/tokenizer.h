// Byte-level BPE like GPT-2's: text is cut into words by GPT-2's pattern, words into bytes, and
// pairs of tokens are merged in the order in which training learned them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Turns text into tokens and back. Immutable; any number of threads may use one.
class Tokenizer {
 public:
  /// Learns merges from the text until there are `vocab` tokens or no more pairs, so vocab() can be
  /// less. Among equally frequent pairs the lowest ids win; merges and ids are those of the
  /// tokenizers package. Throws Error if vocab is below 256.
  static Tokenizer train(std::string_view text, int64_t vocab);
  /// Loads a tokenizer.json (of `save`, or of the tokenizers package with a byte-level BPE), or
  /// GPT-2's own vocabulary: a folder with vocab.json and merges.txt (or encoder.json and
  /// vocab.bpe). Throws Error naming the file and the fault.
  static Tokenizer load(const std::string& path);
  /// The text of a tokenizer.json, which the tokenizers package reads as well.
  std::string json() const;
  void save(const std::string& path) const;

  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  int64_t vocab() const;
  /// The tokens of a text. Thread-safe; remembers words in about 3 MB for each thread that encodes
  /// at the same time. Any bytes are allowed: each one that is no UTF-8 counts as a character that
  /// is neither letter, digit nor space.
  std::vector<int32_t> encode(std::string_view text) const;
  /// The bytes of the tokens. Throws Error for an id that is not a token's.
  std::string decode(const std::vector<int32_t>& tokens) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Writes a file of tokens: "TUTTITOK", then version, bytes per token (2 or 4) and vocabulary
/// (three int32), then the tokens.
void write_tokens(const std::string& path, const std::vector<int32_t>& tokens, int64_t vocab);
/// Reads such a file. Throws Error naming the file if it is not a token file, truncated, or has a
/// token outside of its vocabulary.
std::vector<int32_t> read_tokens(const std::string& path);

}  // namespace tutti
