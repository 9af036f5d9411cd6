// A report as lines for people. Columns are as wide as what is in them, and zeros of the confusion
// matrix are dots, so that mistakes are seen at a glance.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "config/job_parts.h"
#include "eval/metrics.h"

namespace tutti {

namespace {

using nlohmann::json;

constexpr size_t kMostClasses = 100, kMostConfused = 20, kMostName = 24;

/// Columns that a text takes on a screen: one per code point of UTF-8.
size_t width_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

/// The first code points of a long name, with a sign that there is more.
std::string shortened(const std::string& text) {
  if (width_of(text) <= kMostName) return text;
  size_t at = 0;
  for (size_t n = 0; n < kMostName; ++at)
    if ((static_cast<unsigned char>(text[at]) & 0xc0) != 0x80) ++n;
  while ((static_cast<unsigned char>(text[at - 1]) & 0xc0) == 0x80) --at;
  return text.substr(0, at - 1) + "…";
}

std::string number(const json& value) {
  if (value.is_number_integer()) return fmt::format("{}", value.get<int64_t>());
  if (!value.is_number()) return "-";
  const double x = value;
  // Shares and losses have four digits; what is far from 1 (an error in the units of the data) has
  // five significant ones.
  return x != 0 && (x >= 1000 || x <= -1000 || (x < 0.001 && x > -0.001))
             ? fmt::format("{:.5g}", x)
             : fmt::format("{:.4f}", x);
}

/// A table whose first column is aligned to the left and the others to the right.
class Table {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const {
    std::vector<size_t> widths;
    for (const auto& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
    }

    // Widths are known only when all rows are.
    std::string out;
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string blank(widths[i] - width_of(row[i]), ' ');
        line += i == 0 ? row[i] + blank : "  " + blank + row[i];
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string class_name(const std::vector<std::string>& names, size_t c) {
  return c < names.size() ? shortened(names[c]) : fmt::format("{}", c);
}

}  // namespace

std::string metrics_table(const json& report, const std::vector<std::string>& names) {
  // The known averages come in the order of their rows, then whatever else the report has.
  Table averages;
  const std::vector<std::string> order = names_of<MetricPart>();
  const auto known = [&](const std::string& key) {
    return std::find(order.begin(), order.end(), key) != order.end();
  };
  for (const std::string& key : order)
    if (report.contains(key)) averages.row({key, number(report.at(key))});
  for (const auto& [key, value] : report.items())
    if (!known(key) && value.is_number()) averages.row({key, number(value)});
  std::string out = averages.text();

  if (const auto list = report.find("per_class"); list != report.end() && !list->empty()) {
    Table table;
    std::vector<std::string> columns{"class"};
    for (const std::string& key : order)
      if (list->front().contains(key)) columns.push_back(key);
    columns.emplace_back("count");
    table.row(columns);
    for (size_t c = 0; c < std::min(kMostClasses, list->size()); ++c) {
      std::vector<std::string> row{class_name(names, c)};
      for (size_t k = 1; k < columns.size(); ++k) row.push_back(number((*list)[c].at(columns[k])));
      table.row(row);
    }
    out += (out.empty() ? "" : "\n") + table.text();
    if (list->size() > kMostClasses)
      out += fmt::format("and {} more: metrics.jsonl has them\n", list->size() - kMostClasses);
  }

  // Columns of the matrix have numbers as heads; with names, a column of numbers says whose
  // they are.
  if (const auto rows = report.find("confusion");
      rows != report.end() && !rows->empty() && rows->size() <= kMostConfused) {
    Table table;
    std::vector<std::string> head{"is \\ taken for", ""};
    for (size_t c = 0; c < rows->size(); ++c) head.push_back(fmt::format("{}", c));
    if (names.empty()) head.erase(head.begin() + 1);
    table.row(head);
    for (size_t c = 0; c < rows->size(); ++c) {
      std::vector<std::string> row{class_name(names, c)};
      if (!names.empty()) row.push_back(fmt::format("{}", c));
      for (const json& n : (*rows)[c]) row.push_back(n == 0 ? "·" : number(n));
      table.row(row);
    }
    out += (out.empty() ? "" : "\n") + table.text();
  }
  return out;
}

}  // namespace tutti
