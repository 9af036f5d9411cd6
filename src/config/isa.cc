#include "config/isa.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/processor.h"
#include "config/enum_text.h"

namespace tutti {

namespace {

Isa isa_of(const LayoutConfig& layout, int64_t rank) {
  std::vector<std::string> faults;
  const std::vector<Isa> all = parse_isa(layout.isa, faults);
  return all[static_cast<size_t>(rank) % all.size()];
}

}  // namespace

std::vector<Isa> parse_isa(const std::string& text, std::vector<std::string>& faults) {
  std::vector<Isa> all;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    const std::string name = text.substr(begin, end - begin);
    const std::optional<Isa> isa = value_named<Isa>(name);
    if (!isa) {
      faults.push_back(fmt::format("layout.isa: \"{}\" is none of {}", name,
                                   "\"auto\", \"avx512\", \"avx2\" and \"portable\""));
      return {Isa::kAuto};
    }
    all.push_back(*isa);
  }
  return all;
}

CodePath path_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return CodePath::kAvx512;
    case Isa::kAvx2:
      return CodePath::kAvx2;
    case Isa::kPortable:
      return can_run(CodePath::kFma) ? CodePath::kFma : CodePath::kPortable;
    case Isa::kAuto:
      break;
  }
  return fastest_path();
}

CodePath path_of(const LayoutConfig& layout, int64_t rank) {
  const Isa isa = isa_of(layout, rank);
  if (const std::string missing = missing_isa(isa, fastest_path()); !missing.empty())
    throw Error(fmt::format("rank {}: {}", rank, missing));
  return path_of(isa);
}

Job on_rank(Job job, int64_t rank) {
  job.layout.isa = name_of(isa_of(job.layout, rank));
  return job;
}

std::string missing_isa(Isa isa, CodePath fastest) {
  const bool missing = (isa == Isa::kAvx512 && fastest > CodePath::kAvx512) ||
                       (isa == Isa::kAvx2 && fastest > CodePath::kAvx2);
  if (!missing) return "";
  return fmt::format(
      "layout.isa = \"{}\", but this processor has {}", isa,
      fastest == CodePath::kAvx2 ? "\"avx2\" and \"portable\"" : "\"portable\" only");
}

}  // namespace tutti
