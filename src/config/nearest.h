// The nearest valid name to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// Insertions, deletions, replacements and swaps of neighbours that turn a into b.
int edit_distance(std::string_view a, std::string_view b);
/// Whether `distance` edits of `word` are few enough to be a slip.
bool is_slip(std::string_view word, int distance);
/// The candidate nearest to `word` (the first of several), or "" when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);
/// What a message says after its fault: "; did you mean NEAR?", or nothing where `near` is "".
std::string did_you_mean(std::string_view near);

}  // namespace tutti
