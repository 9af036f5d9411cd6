// What the user is told when something fails: an Error speaks for itself, and what a library throws
// becomes a sentence of ours.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace tutti {

/// The message of any exception. For memory that ran out it says what is left and what takes less;
/// for a path that the system refused, the reason; torch's errors lose their stack.
std::string message_of(const std::exception& failure);

/// What message_of says of memory that ran out. `wanted`: how many bytes were asked for, if
/// that is known.
std::string memory_ran_out(std::optional<double> wanted = {});

/// What is wrong with a JSON text, from what its parser threw: "not JSON from byte 17 on", or that
/// a value is missing or of another kind.
std::string json_fault(const std::exception& fault);

/// The text with every byte that is not UTF-8 replaced by '_': names of files may have any bytes,
/// JSON and TOML may not.
std::string as_utf8(const std::string& text);

}  // namespace tutti
