// An enum's values by name, as a job file says them. An enum gets its names from one table next to
// it; parsing, messages, `explain` and docs/job.md read that table, and nothing below compares
// names.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace tutti {

template <class E>
struct EnumName {
  E value;
  std::string_view name;
};

/// The table of E's names, in the order in which docs and messages list them: specialised next to
/// the enum. A value without a row (Init's kGiven) cannot be said in a job file.
template <class E>
inline constexpr std::nullptr_t kNamesOf = nullptr;

template <class E>
concept Named = requires { kNamesOf<E>[0].name; };

/// "" of a value that has no name.
template <Named E>
constexpr std::string_view name_of(E value) {
  for (const auto& known : kNamesOf<E>)
    if (known.value == value) return known.name;
  return {};
}

template <Named E>
constexpr std::optional<E> value_named(std::string_view name) {
  for (const auto& known : kNamesOf<E>)
    if (known.name == name) return known.value;
  return std::nullopt;
}

}  // namespace tutti
