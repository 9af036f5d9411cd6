// Turns a run's events into what is shown while it goes on. Output is for people only, so nothing
// that goes wrong here may end a run.
#include "observe/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "base/text/terminal.h"
#include "observe/summary.h"

namespace tutti {

namespace {

using nlohmann::json;
using Steady = std::chrono::steady_clock;

class Progress final : public EventSink {
 public:
  Progress(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}

  void write(const json& e) override {
    // A blank line comes between what is trained and how it goes.
    const std::string kind = e.at("event");
    if (header_ && kind != "data" && kind != "notice") {
      line("");
      header_ = false;
    }

    // Each kind of event has its text; unknown kinds are for other sinks.
    if (kind == "start") start(e);
    if (kind == "step") step(e);
    if (kind == "eval") line(evaluation_text(e));
    if (kind == "data") line(data_text(e));
    if (kind == "notice") line("notice  " + e.at("text").get<std::string>());
    if (kind == "test") line(test_text(e));
    if (kind == "saved")
      line(fmt::format("step {:>5}   checkpoint {}", e.at("step").get<int64_t>(),
                       e.at("path").get<std::string>()));
    if (kind == "sample") line(fmt::format("\n{}\n", e.at("text").get<std::string>()));
    if (kind == "early_stop")
      line(fmt::format("step {:>5}   early stop: the best {} was {:.4f}, at step {}",
                       e.at("step").get<int64_t>(), e.at("watch").get<std::string>(),
                       e.at("best").get<double>(), e.at("best_step").get<int64_t>()));
    if (kind == "end") line(end_text(e, e.at("step").get<int64_t>() - first_, tokens_, unit_));
  }

 private:
  /// Remembers what later lines are compared with, and says how large the model is.
  void start(const json& e) {
    first_ = e.at("first_step");
    last_ = e.at("steps");
    tokens_ = e.at("tokens_per_step");
    unit_ = e.value("unit", "tok");
    begin_ = printed_ = Steady::now();
    line(fmt::format("model   {} parameters; {} per rank forecast; ready in {:.2f} s",
                     short_count(e.at("parameters").get<double>()),
                     bytes_text(e.at("bytes_forecast").get<double>()),
                     e.at("startup_seconds").get<double>()));
    if (e.value("by_libraries", false))
      line("notice  libraries (MKL, torch) compute here: the bits follow the kind of processor");
    header_ = true;
  }

  void step(const json& e) {
    step_ = e.at("step");

    // The time left follows from the mean over all steps; the rate from a running mean of the last
    // ones, so that it follows changes.
    auto now = Steady::now();
    double elapsed = std::chrono::duration<double>(now - begin_).count();
    double done = static_cast<double>(step_ - first_),
           all = static_cast<double>(std::max<int64_t>(last_ - first_, 1));
    double left = done > 0 ? elapsed / done * (all - done) : 0;
    double seconds = e.at("seconds");
    smooth_ = smooth_ == 0 ? seconds : 0.9 * smooth_ + 0.1 * seconds;

    const std::string loss = fmt::format("loss {:.4f}", e.at("loss").get<double>());
    const std::string rate =
        fmt::format("{} {}/s", short_count(static_cast<double>(tokens_) / smooth_), unit_);
    const std::string ends = fmt::format("{} left", short_duration(left));

    // A terminal redraws one line, at most ten times a second, since drawing takes time.
    if (terminal_) {
      if (now - drawn_ < std::chrono::milliseconds(100) && step_ != last_) return;
      drawn_ = now;
      const Bar bar{done / all, fmt::format("{}/{}", step_, last_), loss, rate, ends};
      put("\r\033[K" + bar_text(bar, terminal_columns(out_)));
      drawing_ = true;
      return;
    }

    // A file gets a line now and then: the first step, every tenth of the run, the last, and at
    // least one in 10 s.
    int64_t tenth = std::max<int64_t>((last_ - first_) / 10, 1);
    bool due = step_ == first_ + 1 || (step_ - first_) % tenth == 0 || step_ == last_ ||
               now - printed_ > std::chrono::seconds(10);
    if (!due) return;
    printed_ = now;
    line(fmt::format("step {:>5}/{}  {}  {}  {}", step_, last_, loss, rate, ends));
  }

  /// A line of its own, after the bar if one is being drawn.
  void line(const std::string& text) {
    put(fmt::format("{}{}\n", drawing_ ? "\n" : "", terminal_ ? printable(text) : text));
    drawing_ = false;
  }

  /// Writes and does not look at the result: a full disk or a lost terminal does not stop
  /// the training.
  void put(const std::string& text) {
    (void)std::fwrite(text.data(), 1, text.size(), out_);
    std::fflush(out_);
  }

  std::FILE* out_;
  bool terminal_;
  bool drawing_ = false, header_ = false;
  int64_t first_ = 0, last_ = 0, tokens_ = 0, step_ = 0;
  std::string unit_ = "tok";
  double smooth_ = 0;
  Steady::time_point begin_, printed_, drawn_;
};

constexpr int kMostCells = 30, kFewestCells = 4;

/// `count` cells, filled from the left in eighths.
std::string cells(double done, int count) {
  const int full = static_cast<int>(std::clamp(done, 0.0, 1.0) * count * 8);
  const char* eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string text;
  for (int i = 0; i < full / 8; ++i) text += "█";
  text += eighths[full % 8];
  return text + std::string(count - full / 8 - (full % 8 != 0 ? 1 : 0), ' ') + "▕ ";
}

}  // namespace

std::string bar_text(const Bar& bar, int columns) {
  constexpr int kBorder = 2;                  // cells between the bar and the words
  const int room = std::max(columns - 1, 0);  // many terminals wrap at the last column

  // Each attempt says less than the one before; the first that leaves room for a bar is taken.
  const std::string shorter = bar.count + "  " + bar.loss;
  for (const std::string& words :
       {shorter + "  " + bar.rate + "  " + bar.left, shorter + "  " + bar.left, shorter}) {
    const int left = room - static_cast<int>(words.size()) - kBorder;
    if (left >= kFewestCells) return cells(bar.done, std::min(kMostCells, left)) + words;
  }

  // There is no room for a bar.
  const std::string& words = static_cast<int>(shorter.size()) <= room ? shorter : bar.count;
  return words.substr(0, static_cast<size_t>(room));
}

std::unique_ptr<EventSink> make_progress(std::FILE* out, bool terminal) {
  return std::make_unique<Progress>(out, terminal);
}

}  // namespace tutti
