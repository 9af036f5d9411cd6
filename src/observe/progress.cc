#include "observe/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace tutti {

namespace {

using nlohmann::json;
using Steady = std::chrono::steady_clock;

std::string duration(double seconds) {
  auto s = static_cast<int64_t>(std::llround(seconds));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string bytes(double n) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  for (; n >= 1024 && u < 4; ++u) n /= 1024;
  return fmt::format("{:.{}f} {}", n, u == 0 ? 0 : 1, units[u]);
}

std::string count(double n) {
  if (n >= 1e6) return fmt::format("{:.2f} M", n / 1e6);
  if (n >= 1e3) return fmt::format("{:.1f} k", n / 1e3);
  return fmt::format("{:.0f}", n);
}

class Progress final : public EventSink {
 public:
  Progress(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}

  void write(const json& e) override {
    const std::string kind = e.at("event");
    if (kind == "start") start(e);
    if (kind == "step") step(e);
    if (kind == "eval") line(evaluation(e));
    if (kind == "saved")
      line(fmt::format("step {:>5}   checkpoint {}", e.at("step").get<int64_t>(), e.at("path").get<std::string>()));
    if (kind == "sample") line(fmt::format("\n{}\n", e.at("text").get<std::string>()));
    if (kind == "end") end(e);
  }

 private:
  void start(const json& e) {
    first_ = e.at("first_step");
    last_ = e.at("steps");
    tokens_ = e.at("tokens_per_step");
    begin_ = printed_ = Steady::now();
    line(fmt::format("model   {} parameters; {} a rank forecast; ready in {:.2f} s\n",
                     count(e.at("parameters").get<double>()), bytes(e.at("bytes_forecast").get<double>()),
                     e.at("startup_seconds").get<double>()));
  }

  void step(const json& e) {
    step_ = e.at("step");
    auto now = Steady::now();
    double elapsed = std::chrono::duration<double>(now - begin_).count();
    double done = static_cast<double>(step_ - first_), all = static_cast<double>(std::max<int64_t>(last_ - first_, 1));
    double left = done > 0 ? elapsed / done * (all - done) : 0;
    double seconds = e.at("seconds");
    smooth_ = smooth_ == 0 ? seconds : 0.9 * smooth_ + 0.1 * seconds;
    std::string text = fmt::format("loss {:.4f}  {} tok/s  {} left", e.at("loss").get<double>(),
                                   count(static_cast<double>(tokens_) / smooth_), duration(left));
    if (terminal_) {
      if (now - drawn_ < std::chrono::milliseconds(100) && step_ != last_) return;
      drawn_ = now;
      constexpr int kWidth = 30;
      int full = static_cast<int>(done / all * kWidth * 8);
      std::string bar;
      const char* eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
      for (int i = 0; i < full / 8; ++i) bar += "█";
      bar += eighths[full % 8];
      int blank = kWidth - full / 8 - (full % 8 != 0 ? 1 : 0);
      fmt::print(out_, "\r\033[K{}{}▕ {}/{}  {}", bar, std::string(blank, ' '), step_, last_, text);
      std::fflush(out_);
      drawing_ = true;
      return;
    }
    int64_t tenth = std::max<int64_t>((last_ - first_) / 10, 1);
    bool due = step_ == first_ + 1 || (step_ - first_) % tenth == 0 || step_ == last_ ||
               now - printed_ > std::chrono::seconds(10);
    if (!due) return;
    printed_ = now;
    line(fmt::format("step {:>5}/{}  {}", step_, last_, text));
  }

  static std::string evaluation(const json& e) {
    double loss = e.at("held_out_loss");
    std::string text = fmt::format("step {:>5}   held-out loss {:.4f}", e.at("step").get<int64_t>(), loss);
    if (e.contains("bigram_loss")) {
      double bigram = e.at("bigram_loss");
      text += fmt::format("   byte bigram {:.4f}   {:.4f} nats {}", bigram, std::abs(bigram - loss),
                          loss < bigram ? "below" : "above");
    }
    return text;
  }

  void end(const json& e) {
    std::string kinds;
    for (const auto& [kind, n] : e.at("peak_bytes").items())
      if (kind != "total") kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", kind, bytes(n.get<double>()));
    double seconds = e.at("seconds");
    double steps = static_cast<double>(e.at("step").get<int64_t>() - first_);
    line(fmt::format("{} at step {} after {}: {} tok/s; peak memory of rank 0 {} ({}); loader stall {:.2f} %",
                     e.at("stopped").get<bool>() ? "stopped" : "finished", e.at("step").get<int64_t>(),
                     duration(seconds), count(seconds > 0 ? steps * static_cast<double>(tokens_) / seconds : 0),
                     bytes(e.at("peak_bytes").at("total").get<double>()), kinds,
                     seconds > 0 ? 100 * e.at("loader_stall_seconds").get<double>() / seconds : 0));
  }

  void line(const std::string& text) {
    if (drawing_) fmt::print(out_, "\n");
    drawing_ = false;
    fmt::print(out_, "{}\n", text);
    std::fflush(out_);
  }

  std::FILE* out_;
  bool terminal_;
  bool drawing_ = false;
  int64_t first_ = 0, last_ = 0, tokens_ = 0, step_ = 0;
  double smooth_ = 0;
  Steady::time_point begin_, printed_, drawn_;
};

}  // namespace

std::unique_ptr<EventSink> make_progress(std::FILE* out, bool terminal) {
  return std::make_unique<Progress>(out, terminal);
}

}  // namespace tutti
