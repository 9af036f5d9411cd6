// Decodes codes with the trained decoder and writes them as an array.
#include "app/commands/generate.h"

#include <fmt/format.h>

#include "app/train_command.h"
#include "base/file.h"
#include "base/text/terminal.h"
#include "data/images/arrays.h"
#include "infer/generator.h"
#include "tensor/threads.h"

namespace tutti {

int generate_command(const std::string& run, int64_t count, uint64_t seed, const std::string& out) {
  refuse_bad_output(out);
  const Job job = job_on_host(run);
  prepare_compute_thread(1);
  Generator generator(run, job);
  write_npy(out, {count, generator.width()}, generator.samples(count, seed));
  show(is_stdout(out) ? stderr : stdout,
       fmt::format("{}  {} samples of {} values\n", out, count, generator.width()));
  return 0;
}

}  // namespace tutti
