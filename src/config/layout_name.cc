#include "config/layout_name.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/job_check.h"
#include "config/schema.h"

namespace tutti {

std::string layout_words(const Job& job, LayoutWords words,
                         std::initializer_list<std::string_view> without) {
  std::string text;
  for (const Key& key : keys()) {
    const std::string& form = words == LayoutWords::kLong ? key.long_name : key.short_name;
    if (form.empty()) continue;
    if (std::find(without.begin(), without.end(), key.full_name()) != without.end()) continue;
    const Value value = key.get(job);
    if ((value == key.off() && !key.always_named) || !idle_reason(job, key.full_name()).empty())
      continue;
    text += fmt::format(fmt::runtime(form), plain_text(value));
  }
  return text;
}

}  // namespace tutti
