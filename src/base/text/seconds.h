// Times in words.
#pragma once

#include <string>

namespace tutti {

/// "12.5 us", "340.2 ms", "1.5 s": at most four digits, in the unit that suits.
std::string seconds_text(double seconds);

}  // namespace tutti
