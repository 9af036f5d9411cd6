// GPT-2's pattern by hand, without an engine for regular expressions: nearly all text is ASCII,
// whose characters are classified by one lookup. Other characters go to utf8proc.
#include "data/text/pretokenize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace tutti {
namespace {

using Byte = unsigned char;

// kWide: the first byte of a character of several, which must be looked at whole.
enum class Kind : uint8_t { kOther, kLetter, kDigit, kSpace, kWide };

struct Character {
  Kind kind;
  int bytes;
};

constexpr std::array<Kind, 256> kBytes = [] {
  std::array<Kind, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    const bool digit = c >= '0' && c <= '9';
    kinds[c] = c >= 0x80 ? Kind::kWide
               : letter  ? Kind::kLetter
               : digit   ? Kind::kDigit
               : space   ? Kind::kSpace
                         : Kind::kOther;
  }
  return kinds;
}();

/// Letters and digits of Unicode 15.1 and 16 in ascending order, which the tokenizers package knows
/// and an older utf8proc does not.
struct Newer {
  int32_t first, last;
  Kind kind;
};
constexpr Newer kNewer[] = {
    {0x1c89, 0x1c8a, Kind::kLetter},   {0xa7cb, 0xa7cd, Kind::kLetter},
    {0xa7da, 0xa7dc, Kind::kLetter},   {0x105c0, 0x105f3, Kind::kLetter},
    {0x10d40, 0x10d49, Kind::kDigit},  {0x10d4a, 0x10d65, Kind::kLetter},
    {0x10d6f, 0x10d85, Kind::kLetter}, {0x10ec2, 0x10ec4, Kind::kLetter},
    {0x11380, 0x11389, Kind::kLetter}, {0x1138b, 0x1138b, Kind::kLetter},
    {0x1138e, 0x1138e, Kind::kLetter}, {0x11390, 0x113b5, Kind::kLetter},
    {0x113b7, 0x113b7, Kind::kLetter}, {0x113d1, 0x113d1, Kind::kLetter},
    {0x113d3, 0x113d3, Kind::kLetter}, {0x116d0, 0x116e3, Kind::kDigit},
    {0x11bc0, 0x11be0, Kind::kLetter}, {0x11bf0, 0x11bf9, Kind::kDigit},
    {0x13460, 0x143fa, Kind::kLetter}, {0x16100, 0x1611d, Kind::kLetter},
    {0x16130, 0x16139, Kind::kDigit},  {0x16d40, 0x16d6c, Kind::kLetter},
    {0x16d70, 0x16d79, Kind::kDigit},  {0x18cff, 0x18cff, Kind::kLetter},
    {0x1ccf0, 0x1ccf9, Kind::kDigit},  {0x1e5d0, 0x1e5ed, Kind::kLetter},
    {0x1e5f0, 0x1e5f0, Kind::kLetter}, {0x1e5f1, 0x1e5fa, Kind::kDigit},
    {0x2ebf0, 0x2ee5d, Kind::kLetter},
};

/// The kind of a character as the pattern sees it: \p{L}, \p{N}, \s or none of these.
Kind kind_of(int32_t character) {
  // \p{L} are the five categories of letters, \p{N} the three of numbers, \s the separators.
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Kind::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return Kind::kDigit;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return Kind::kSpace;
    case UTF8PROC_CATEGORY_CC:
      return character == 0x85 ? Kind::kSpace : Kind::kOther;  // NEL, the next-line control

    // Not assigned, as far as this utf8proc knows.
    case UTF8PROC_CATEGORY_CN: {
      const Newer* newer =
          std::lower_bound(std::begin(kNewer), std::end(kNewer), character,
                           [](const Newer& range, int32_t wanted) { return range.last < wanted; });
      return newer != std::end(kNewer) && newer->first <= character ? newer->kind : Kind::kOther;
    }
    default:
      return Kind::kOther;
  }
}

/// The character of several bytes at `at`; a byte that is no UTF-8 stands for itself.
Character wide_at(const Byte* at, const Byte* end) {
  utf8proc_int32_t character = 0;
  const auto bytes = static_cast<int>(utf8proc_iterate(at, end - at, &character));
  if (bytes <= 0) return {Kind::kOther, 1};
  return {kind_of(character), bytes};
}

inline Character character_at(const Byte* at, const Byte* end) {
  const Kind kind = kBytes[*at];
  return kind == Kind::kWide ? wide_at(at, end) : Character{kind, 1};
}

/// The end of the run of characters of one kind that goes on at `at`.
inline const Byte* run_end(const Byte* at, const Byte* end, Kind kind) {
  while (at < end) {
    const Kind here = kBytes[*at];
    if (here == kind) {
      ++at;
    } else if (here == Kind::kWide) {
      const Character wide = wide_at(at, end);
      if (wide.kind != kind) break;
      at += wide.bytes;
    } else {
      break;
    }
  }
  return at;
}

/// The end of a run of spaces: all of them at the end of the text, otherwise all but the last one,
/// which then begins the next word, or is a word if it is the only one.
const Byte* spaces_end(const Byte* at, const Byte* end) {
  const Byte* begin = at;
  const Byte* last = at;
  while (at < end) {
    const Character character = character_at(at, end);
    if (character.kind != Kind::kSpace) return last == begin ? at : last;
    last = at;
    at += character.bytes;
  }
  return end;
}

/// The length of one of 's 't 'm 'd 're 've 'll at an apostrophe; 0 if there is none.
int contraction(const Byte* at, const Byte* end) {
  if (end - at < 2) return 0;
  const Byte a = at[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - at < 3) return 0;
  const Byte b = at[2];
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/// The end of the word that begins at `at`: an optional space, then a run of one kind; or a
/// contraction; or spaces.
const Byte* word_end(const Byte* at, const Byte* end) {
  const Byte* start = at;
  if (*at == ' ' && at + 1 < end) ++at;
  const Character first = character_at(at, end);
  if (first.kind == Kind::kSpace) return spaces_end(start, end);
  if (*start == '\'') {
    if (const int length = contraction(at, end); length > 0) return at + length;
  }
  return run_end(at + first.bytes, end, first.kind);
}

}  // namespace

std::string_view first_word(std::string_view text) {
  const auto* begin = reinterpret_cast<const Byte*>(text.data());
  return text.substr(0, static_cast<size_t>(word_end(begin, begin + text.size()) - begin));
}

}  // namespace tutti
