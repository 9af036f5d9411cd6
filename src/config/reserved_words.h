// Words that mean something of their own in keys that else hold a name, a path or a character.
// Whoever reads such a key asks here, so that a word is decided in one place.
#pragma once

#include <array>
#include <string_view>

#include "config/job.h"

namespace tutti {

/// data.tokenizer: each byte is a token.
inline constexpr const char* kBytesTokenizer = "bytes";
inline bool tokens_are_bytes(const DataConfig& data) { return data.tokenizer == kBytesTokenizer; }
/// data.tokenizer: the tokens are learned from the text itself.
inline bool learns_tokens(const DataConfig& data) { return data.tokenizer == "bpe"; }

/// data.delimiter: the file's name decides.
inline constexpr const char* kAutomaticDelimiter = "auto";
inline bool delimiter_by_name(const DataConfig& data) {
  return data.delimiter == kAutomaticDelimiter;
}

/// layout.partition_by: the records' classes instead of a column.
inline constexpr const char* kByClass = "class";
inline bool partition_by_class(const LayoutConfig& layout) {
  return layout.partition_by == kByClass;
}

/// data.path: data that set-up installs, in the data folder.
struct InstalledData {
  std::string_view word, file, help;
  std::array<std::string_view, 10> classes{};  ///< their names, if records have classes
};
inline constexpr InstalledData kInstalledData[] = {
    {"kjv", "kjv.txt", "the King James text", {}},
    {"fashion-mnist",
     "fashion-mnist",
     "Fashion-MNIST",
     {"t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
      "boot"}},
};
/// Null for any other path.
inline const InstalledData* installed_data(std::string_view path) {
  for (const InstalledData& data : kInstalledData)
    if (data.word == path) return &data;
  return nullptr;
}

}  // namespace tutti
