// Exceptions of libraries are told apart by their types; nothing is guessed from their texts,
// except where torch's stack begins.
#include "base/text/message.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"

namespace tutti {

std::string memory_ran_out(std::optional<double> wanted) {
  // A limit that the user has set is met long before the machine's memory is used up, so
  // it is named.
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return fmt::format(
      "memory ran out{}: {} are available on this machine{}; fewer ranks, a smaller "
      "train.micro_batch_size, a smaller "
      "model or less data take less",
      wanted ? fmt::format(" where {} were asked for", bytes_text(*wanted)) : "",
      bytes_text(available_memory()),
      limited ? fmt::format(", and the limit on a process's memory (ulimit -v) is {}",
                            bytes_text(limit.rlim_cur))
              : "");
}

std::string message_of(const std::exception& failure) {
  // A length_error is a size that no memory could hold.
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
  const bool no_such_size = dynamic_cast<const std::length_error*>(&failure) != nullptr;
  if (no_memory || no_such_size) return memory_ran_out();
  if (const auto* path = dynamic_cast<const std::filesystem::filesystem_error*>(&failure))
    return fmt::format("cannot use {}: {}", path->path1().string(), path->code().message());
  std::string text = failure.what();
  // torch's texts go on with where that was.
  text.resize(std::min(text.size(), text.find("\nException raised from ")));
  return text;
}

std::string json_fault(const std::exception& fault) {
  if (const auto* parse = dynamic_cast<const nlohmann::json::parse_error*>(&fault))
    return fmt::format("not JSON from byte {} on", parse->byte);
  return "a value is missing, or is not of the kind that belongs there";
}

std::string as_utf8(const std::string& text) {
  // The JSON library replaces bad bytes by U+FFFD when it writes, so a round trip through it
  // finds them all.
  using nlohmann::json;
  std::string valid = json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace))
                          .get<std::string>();
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  for (size_t at = 0; (at = valid.find(kReplacement, at)) != std::string::npos;)
    valid.replace(at, kReplacement.size(), "_");
  return valid;
}

}  // namespace tutti
