// Text for people: without the bytes that a terminal would obey, cut to what a person reads, as
// wide as the terminal.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// The text with control characters as \xNN: ESC, BEL and all others below a blank but line ends
/// and tabs, DEL, those from U+0080 to U+009F, and bytes that are not UTF-8. File names and data
/// may hold any of them, and a terminal obeys them.
std::string printable(std::string_view text);

/// The first `most` lines, then "and N more".
std::vector<std::string> first_few(std::vector<std::string> lines, size_t most = 20);

/// Writes the text: printable where `out` is a terminal, byte for byte elsewhere. Never throws:
/// that it could not be written is left for flushed() to say.
void show(std::FILE* out, std::string_view text);
/// Shows a line at once.
void print_line(std::FILE* out, std::string_view line);
/// "tutti: text" as a line on stderr, always printable.
void complain(std::string_view text);
/// Flushes stdout. False: something of what was written to it since the start is lost, and stderr
/// says so.
bool flushed();

/// Columns of the terminal behind `out`, asked anew each time because a window may change; 80 where
/// nobody knows.
int terminal_columns(std::FILE* out);

}  // namespace tutti
