// A layout's name, from what the rows of its keys say of it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "config/job.h"

namespace tutti {

/// kLong: ", 1f1b, zero 1 over 2, recompute full", after the sizes of the mesh. kShort:
/// ",1f1b,zero1/2,full", for tables.
enum class LayoutWords { kLong, kShort };

/// Of the keys that are not their defaults and say something to this layout, in the order of their
/// rows. `without`: full names of keys that are said elsewhere.
std::string layout_words(const Job& job, LayoutWords words,
                         std::initializer_list<std::string_view> without = {});

}  // namespace tutti
