// A rank that is busy with something of its own, as with a user's data set.
#pragma once

#include "base/wait.h"

namespace tutti::testing_support {

/// Keeps a core busy for so long.
inline void work_for(Duration time, const Clock& clock) {
  for (const Deadline end = clock.after(time); !clock.passed(end);) {
  }
}

}  // namespace tutti::testing_support
