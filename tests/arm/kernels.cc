// usage: kernels TRIALS. Prints the digests of the golden check and of so many random trials of
// every kernel on the portable path, and ends with 1 if a golden one is not as expected. It is
// compiled for this processor and for ARM64: the texts must be equal.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "support/kernel_trials.h"
#include "train/golden.h"

int main(int argc, char** argv) {
  using namespace tutti;
  bool sound = true;
  for (const Golden& one : golden(CodePath::kPortable)) {
    std::puts(fmt::format("golden {} {:016x}", one.kernels, one.digest).c_str());
    sound = sound && one.digest == one.expected;
  }
  const auto count = static_cast<uint64_t>(argc > 1 ? std::atoi(argv[1]) : 1);
  for (const test::KernelTrial& trial : test::kKernelTrials)
    for (uint64_t seed = 1; seed <= count; ++seed)
      std::puts(fmt::format("{} {} {:016x}", trial.name, seed,
                            test::digest(trial.run(CodePath::kPortable, seed)))
                    .c_str());
  return sound ? 0 : 1;
}
