// Cuts text into words as GPT-2's pattern does:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#pragma once

#include <string_view>

namespace tutti {

/// The first word of a text that is not empty. Taken one after the other, the words are the whole
/// text. Any bytes are allowed: each one that is no UTF-8 counts as a character that is neither
/// letter, digit nor space.
std::string_view first_word(std::string_view text);

}  // namespace tutti
