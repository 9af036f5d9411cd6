// Text for people: without the bytes that a terminal would obey, cut to what a person reads, and as
// wide as the terminal.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace tutti {

/// The text with control characters as \xNN: all below a blank (ESC, BEL, ...) except line ends and
/// tabs, DEL, those from U+0080 to U+009F, and bytes that are not UTF-8. Names of files and data
/// may hold any of them, and a terminal would obey them.
std::string printable(std::string_view text);

/// Writes the text: printable if `out` is a terminal, else byte for byte. Never throws: flushed()
/// says later whether anything could not be written.
void show(std::FILE* out, std::string_view text);
/// Shows a line, and flushes it.
void print_line(std::FILE* out, std::string_view line);
/// Writes "tutti: text" as a line on stderr, always printable.
void complain(std::string_view text);
/// Flushes stdout. False if anything of what was written to it since the start is lost; stderr
/// then says so.
bool flushed();

/// Columns of the terminal that `out` goes to, asked anew each time because a window may change; 80
/// if nobody knows.
int terminal_columns(std::FILE* out);

}  // namespace tutti
