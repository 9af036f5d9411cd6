// The one table of all keys of a job file. Parsing, checking, `explain`, docs/job.md and the hints
// at mistyped keys read it.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/job.h"
#include "config/value.h"

namespace tutti {

/// Limits of an integer or a number, or of every element of an array.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool below_high = false;  ///< `high` itself is not allowed
  bool holds(double value) const;
  /// "at least 1", "from 0 to 3", "at least 0 and below 1"; "" without limits.
  std::string text() const;
};

struct Key {
  std::string section, name, help;
  Value fallback;  ///< the default
  Value off;       ///< with which the key does nothing: the default, or what stands for `auto` then
  Limits limits;
  std::vector<std::string> allowed;  ///< of a string; empty: any
  bool automatic = false;            ///< an integer or "auto", which is the default
  bool layout = false;               ///< does not change the result
  bool may_change = false;           ///< where a run goes on; its bits are others from there on
  bool searched = false;             ///< the planner says its value where nobody does
  /// How a value stands in a layout's name: ", recompute {}", and in its short one: ",{}". Empty:
  /// it does not.
  std::string long_name, short_name;
  bool always_named = false;  ///< the default, too
  bool own_column = false;    ///< tables have a column for it: only a layout's whole name says it
  bool gpu = false;           ///< says nothing to a CPU, where it must not be set
  bool float16 = false;       ///< likewise to other precisions
  std::function<Value(const Job&)> get;
  std::function<void(Job&, const Value&)> set;
  std::function<const void*(const Job&)> field;  ///< where the job holds the value
  std::function<std::string(const Job&)> idle;

  /// Why the key says nothing to this job ("layout.pipeline = 1: ..."); "" where it does.
  std::string idle_reason(const Job& job) const { return idle ? idle(job) : ""; }
  std::string full_name() const { return section + "." + name; }
  ValueType type() const { return automatic ? ValueType::kInteger : type_of(fallback); }
};

struct Section {
  std::string name, help;
};

const std::vector<Section>& sections();
/// In the order of the sections.
const std::vector<Key>& keys();
/// Null when there is none.
const Key* find_key(std::string_view section, std::string_view name);
/// By "section.key", which there must be.
const Key& key_named(std::string_view full_name);
/// The full name of the key nearest to a mistyped one: in its section first, then by its name in
/// any section. "" when none is near.
std::string nearest_key(std::string_view section, std::string_view name);
std::string nearest_section(std::string_view name);

/// The value as the key's type; an integer is a number, too. None if it is of the wrong type.
std::optional<Value> convert(const Key& key, const Value& value);
/// What is wrong with a value of the key's type ("train.steps = 0 is out of range: it must be at
/// least 1"); "" when nothing is.
std::string fault_of(const Key& key, const Value& value);

}  // namespace tutti
