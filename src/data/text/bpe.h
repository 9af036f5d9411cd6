// What a byte-level BPE tokenizer consists of, and how one is learned from a text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// A vocabulary with its merges.
struct Bpe {
  struct Merge {
    int32_t left, right, result;
  };
  /// A token that is found in the text as it is written, before words are cut.
  struct Added {
    int32_t id;
    bool special;
  };
  std::vector<std::string> tokens;  ///< bytes, by id
  std::vector<Merge> merges;        ///< the first is applied first; every pair occurs once
  std::vector<Added> added;
};

/// The characters that stand for the bytes in vocabulary files (GPT-2's): a byte itself if it is
/// visible, else U+0100 and on.
std::array<char32_t, 256> byte_characters();

/// The bytes in the order of their characters: the first 256 ids of a trained vocabulary.
std::array<uint8_t, 256> byte_order();

/// Learns merges until there are `vocab` tokens or no pairs. Merges and ids are those of the
/// tokenizers package's BpeTrainer with the byte-level alphabet. Throws Error if vocab is below
/// 256. A merge looks only at the words that have its pair.
Bpe train_bpe(std::string_view text, int64_t vocab);

}  // namespace tutti
