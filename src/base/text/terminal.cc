// UTF-8 is taken apart by hand: a text that only looks right could carry control characters to the
// terminal in another spelling.
#include "base/text/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tutti {

namespace {

bool is_between(char byte, int low, int high) {
  const auto value = static_cast<unsigned char>(byte);
  return value >= low && value <= high;
}

/// The length of the UTF-8 character that a text starts with; 0: it starts with none. The limits of
/// the second byte refuse characters that are longer than they need be (another spelling of ESC),
/// surrogates, and numbers above U+10FFFF.
size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;

  const int low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const int high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (text.size() < length || !is_between(text[1], low, high)) return 0;
  for (size_t i = 2; i < length; ++i)
    if (!is_between(text[i], 0x80, 0xbf)) return 0;
  return length;
}

/// C0 without line ends and tabs, DEL, and C1, which UTF-8 spells with 0xc2.
bool is_control(std::string_view character) {
  if (character.size() == 1)
    return character[0] != '\n' && character[0] != '\t' &&
           (is_between(character[0], 0, 0x1f) || character[0] == 0x7f);
  return character.size() == 2 && character[0] == '\xc2' && is_between(character[1], 0x80, 0x9f);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());

  // A byte that starts no character is shown by itself, and the next one is looked at anew.
  while (!text.empty()) {
    const size_t length = character_length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    if (length > 0 && !is_control(character)) {
      out += character;
    } else {
      for (char byte : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    text.remove_prefix(character.size());
  }
  return out;
}

void show(std::FILE* out, std::string_view text) {
  const std::string safe = ::isatty(::fileno(out)) != 0 ? printable(text) : std::string(text);
  (void)std::fwrite(safe.data(), 1, safe.size(), out);
}

void print_line(std::FILE* out, std::string_view line) {
  show(out, fmt::format("{}\n", line));
  (void)std::fflush(out);
}

void complain(std::string_view text) {
  const std::string line = fmt::format("tutti: {}\n", printable(text));
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
}

bool flushed() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0) return true;

  // An earlier failure has left its mark on the stream, but not its reason.
  complain(fmt::format("cannot write the output: {}",
                       flushed ? "a part of it is lost" : std::strerror(reason)));
  return false;
}

int terminal_columns(std::FILE* out) {
  constexpr int kUnknown = 80;
  winsize size{};
  const int fd = ::fileno(out);
  return fd >= 0 && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUnknown;
}

}  // namespace tutti
