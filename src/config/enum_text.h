// Prints a named enum in messages: "{}" of Recompute::kFull is "full". The compiler of CUDA code,
// which reads this by way of the job, does not understand fmt, and prints nothing.
#pragma once

#ifndef __CUDACC__

#include <fmt/format.h>

#include <type_traits>

#include "config/enum_names.h"

template <class E>
struct fmt::formatter<E, char, std::enable_if_t<tutti::Named<E>>>
    : fmt::formatter<std::string_view, char> {
  template <class Context>
  auto format(E value, Context& context) const {
    return fmt::formatter<std::string_view, char>::format(tutti::name_of(value), context);
  }
};

#endif
