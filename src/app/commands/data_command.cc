// Opens the data as a run of one rank would, and prints what it has found.
#include "app/commands/data_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/text/lists.h"
#include "base/text/terminal.h"
#include "data/core/resample.h"
#include "data/load/partition.h"

namespace tutti {

namespace {

constexpr int64_t kMostRecords = 1 << 20;  // of those that are counted

std::string classes_of(const Dataset& data, const std::vector<std::string>& names) {
  std::map<int64_t, int64_t> counts;
  for (int64_t i = 0; i < std::min(data.size(), kMostRecords); ++i) ++counts[data.label(i)];
  if (counts.empty() || counts.begin()->first < 0) return "";
  std::vector<std::string> texts;
  for (const auto& [label, count] : counts) {
    const bool named = label < static_cast<int64_t>(names.size());
    texts.push_back(fmt::format(
        "{} {}", named ? names[static_cast<size_t>(label)] : std::to_string(label), count));
  }
  return fmt::format("  {}", fmt::join(first_few(std::move(texts)), "  "));
}

void print_part(const char* name, const Dataset* data, const DataReport& report) {
  if (data == nullptr || data->size() == 0) return;
  show(stdout,
       fmt::format("{:10} {} records{}\n", name, data->size(), classes_of(*data, report.classes)));
}

}  // namespace

int data_command(const TrainArguments& arguments) {
  const Job job = job_of(arguments);
  const Split split = open_data(job);
  print_part("train", split.train.get(), split.report);
  print_part("held out", split.held_out.get(), split.report);
  print_part("test", split.test.get(), split.report);

  // What was done to the records on their way: scaling, and those that were left out.
  if (!split.report.notice.empty()) fmt::print("{:10} {}\n", "notice", split.report.notice);
  for (const std::string& line : first_few(split.report.statistics))
    show(stdout, fmt::format("{:10} {}\n", "scaled by", line));
  if (split.report.skipped > 0) fmt::print("{:10} {} records\n", "skipped", split.report.skipped);
  for (const std::string& fault : first_few(split.report.faults))
    show(stdout, fmt::format("{:10} {}\n", "", fault));

  // How unequal the ranks' shares will be, if records are not simply dealt out by lanes.
  const int ranks = static_cast<int>(job.layout.ranks);
  if (const Partition partition = make_partition(job.layout, split.train, ranks))
    show(stdout, fmt::format("\npartition of the training records by \"{}\" over {} ranks\n{}",
                             job.layout.partition, ranks,
                             to_text(skew_of(partition, *split.train, ranks))));

  // The digest of the order is the same for every partition and layout.
  const Order order = make_order(job, *split.train);
  const int64_t samples = std::min(split.train->size(), kMostRecords);
  uint64_t digest = 0;
  for (int64_t i = 0; i < samples; ++i)
    digest += order_digest(static_cast<uint64_t>(i), order.record(static_cast<uint64_t>(i)));
  fmt::print("order      {:016x} of the first {} samples\n", digest, samples);
  return 0;
}

}  // namespace tutti
