// A layout in words: the sizes of its mesh, and what the rows of its keys (config/keys.cc) say of
// those that are not their defaults. What tables show in a column of its own (transport, overlap,
// hosts) has no words.
#pragma once

#include <string>

#include "config/job.h"

namespace tutti {

/// "data 2 x tensor 1 x pipeline 4, 1f1b, zero 1, fold owner"
std::string layout_name(const LayoutConfig& layout);
/// The same for a line that says the number of ranks and the fold itself, each part after a comma
/// (", zero 1"), and the mesh only where it has another axis than data.
std::string layout_suffix(const LayoutConfig& layout);
/// The same as a word without spaces, for tables that have a column for the fold:
/// "2x1x4,1f1b,zero1".
std::string layout_word(const LayoutConfig& layout);

}  // namespace tutti
