// What a person sees of a run: plain lines in a file, a bar on a terminal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "observe/progress_bar.h"

namespace tutti {
namespace {

using nlohmann::json;

/// A progress display that writes into memory.
class Screen {
 public:
  explicit Screen(bool terminal)
      : file_(::open_memstream(&text_, &size_)), sink_(make_progress(file_, terminal)) {}
  ~Screen() {
    sink_.reset();
    std::fclose(file_);
    std::free(text_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  void write(const json& event) { sink_->write(event); }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
  std::unique_ptr<EventSink> sink_;
};

json start(int64_t first, int64_t steps) {
  return {{"event", "start"},        {"job", "tiny"},
          {"parameters", 118500},    {"ranks", 2},
          {"first_step", first},     {"steps", steps},
          {"tokens_per_step", 1000}, {"bytes_forecast", 3 << 20},
          {"startup_seconds", 0.25}};
}
json step(int64_t n, double loss) {
  return {{"event", "step"}, {"step", n}, {"loss", loss}, {"seconds", 0.5}};
}
json end(int64_t step, bool stopped) {
  return {{"event", "end"},
          {"step", step},
          {"seconds", 50.0},
          {"stopped", stopped},
          {"peak_bytes", {{"gradient", 1 << 20}, {"total", 3 << 20}}},
          {"loader_stall_seconds", 0.5},
          {"state_sha256", "ab"}};
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(PlainLines, TellTheModelAndAboutTenStepsOfARun) {
  Screen screen(false);
  screen.write(start(0, 200));
  for (int64_t n = 1; n <= 200; ++n) screen.write(step(n, 5.0 - static_cast<double>(n) / 100));
  const std::string text = screen.text();
  EXPECT_NE(text.find("118.5 k parameters; 3 MiB per rank"), std::string::npos) << text;
  EXPECT_NE(text.find("step     1/200  loss 4.9900  2.0 k tok/s"), std::string::npos) << text;
  EXPECT_NE(text.find("step   200/200  loss 3.0000"), std::string::npos) << text;
  EXPECT_EQ(count(text, "loss "), 11u) << text;  // the first and every tenth
  EXPECT_EQ(count(text, "\r"), 0u);
  EXPECT_EQ(count(text, "\033"), 0u);
}

TEST(PlainLines, TellEveryStepOfAShortRunThatGoesOn) {
  Screen screen(false);
  screen.write(start(97, 100));
  for (int64_t n = 98; n <= 100; ++n) screen.write(step(n, 1));
  EXPECT_EQ(count(screen.text(), "/100  loss "), 3u) << screen.text();
}

TEST(PlainLines, PutTheHeldOutLossBesideItsBaseline) {
  Screen screen(false);
  const nlohmann::json bigram = {{"name", "byte bigram"}, {"loss", 2.25}};
  screen.write({{"event", "eval"}, {"step", 7}, {"held_out_loss", 1.5}, {"baseline", bigram}});
  screen.write({{"event", "eval"}, {"step", 8}, {"held_out_loss", 2.5}, {"baseline", bigram}});
  screen.write({{"event", "eval"}, {"step", 9}, {"held_out_loss", 0.5}});
  EXPECT_EQ(screen.text(),
            "step     7   held-out loss 1.5000   byte bigram 2.2500   0.7500 nats below\n"
            "step     8   held-out loss 2.5000   byte bigram 2.2500   0.2500 nats above\n"
            "step     9   held-out loss 0.5000\n");
}

TEST(PlainLines, TellCheckpointsTheSampleAndTheEnd) {
  Screen screen(false);
  screen.write(start(0, 100));
  screen.write({{"event", "saved"}, {"step", 100}, {"path", "runs/x/checkpoints/step-00000100"}});
  screen.write({{"event", "sample"}, {"text", "In the beginning"}});
  screen.write(end(100, false));
  const std::string text = screen.text();
  EXPECT_NE(text.find("step   100   checkpoint runs/x/checkpoints/step-00000100\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("\nIn the beginning\n"), std::string::npos) << text;
  EXPECT_NE(text.find("finished at step 100 after 0:50: 2.0 k tok/s"), std::string::npos) << text;
  EXPECT_NE(text.find("gradient 1 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("loader stall 1.00 %"), std::string::npos) << text;
  Screen stopped(false);
  stopped.write(start(0, 100));
  stopped.write(end(50, true));
  EXPECT_NE(stopped.text().find("stopped at step 50"), std::string::npos);
}

TEST(PlainLines, PutMetricsAndTheTruthBesideTheHeldOutLoss) {
  Screen screen(false);
  screen.write(
      {{"event", "eval"},
       {"step", 7},
       {"held_out_loss", 0.5},
       {"metrics", {{"loss", 0.5}, {"accuracy", 0.75}, {"auc", nullptr}, {"confusion", {{1, 2}}}}},
       {"baseline", {{"name", "truth"}, {"loss", 0.45}}}});
  EXPECT_EQ(
      screen.text(),
      "step     7   held-out loss 0.5000   accuracy 0.7500   truth 0.4500   0.0500 nats above\n");
}

TEST(PlainLines, CountSamplesWhereTheRunSaysSo) {
  Screen screen(false);
  json event = start(0, 100);
  event["unit"] = "samples";
  screen.write(event);
  screen.write(step(1, 1));
  screen.write(end(100, false));
  EXPECT_NE(screen.text().find("loss 1.0000  2.0 k samples/s  "), std::string::npos)
      << screen.text();
  EXPECT_NE(screen.text().find("after 0:50: 2.0 k samples/s; peak"), std::string::npos)
      << screen.text();
  EXPECT_EQ(screen.text().find("tok"), std::string::npos) << screen.text();
}

TEST(PlainLines, TellWhatTheDataIsAndWhatWasLeftOutOfIt) {
  Screen screen(false);
  screen.write(start(0, 100));
  screen.write({{"event", "data"},
                {"records", 54000},
                {"held_out", 6000},
                {"test", 10000},
                {"skipped", 2},
                {"faults", {"a.csv:3:1: no number", "a.csv:9:2: too few columns"}},
                {"statistics", {"age mean 38.2 deviation 13.1"}},
                {"skew", "rank 0 27000\nrank 1 27000\n"}});
  screen.write(step(1, 1));
  EXPECT_NE(
      screen.text().find("ready in 0.25 s\n"
                         "data    54000 records, 6000 held out, 10000 for the test; 2 skipped\n"
                         "        a.csv:3:1: no number\n"
                         "        a.csv:9:2: too few columns\n"
                         "        age mean 38.2 deviation 13.1\n"
                         "        rank 0 27000\n"
                         "        rank 1 27000\n"
                         "\n"
                         "step     1/100"),
      std::string::npos)
      << screen.text();
  Screen little(false);
  little.write({{"event", "data"},
                {"records", int64_t{1} << 40},
                {"held_out", 5},
                {"test", 0},
                {"skipped", 0}});
  EXPECT_EQ(little.text(), "data    1.10 T records, 5 held out\n");
}

TEST(PlainLines, TellTheTestWithTheAccuracyOnALineOfItsOwn) {
  Screen screen(false);
  screen.write(
      {{"event", "test"},
       {"step", 100},
       {"metrics",
        {{"loss", 0.25},
         {"accuracy", 0.92344},
         {"f1", 0.9},
         {"per_class",
          {{{"precision", 1}, {"recall", 0.5}, {"f1", 0.6}, {"auc", nullptr}, {"count", 3}}}},
         {"confusion", {{3}}}}},
       {"classes", {"boot"}}});
  EXPECT_EQ(screen.text(),
            "test accuracy 0.9234\n"
            "test loss 0.2500\n"
            "f1  0.9000\n"
            "\n"
            "class  precision  recall      f1  auc  count\n"
            "boot           1  0.5000  0.6000    -      3\n"
            "\n"
            "is \\ taken for     0\n"
            "boot            0  3\n");
  Screen values(false);
  values.write(
      {{"event", "test"}, {"step", 1}, {"metrics", {{"loss", 0.25}, {"mse", 0.25}, {"r2", 0.5}}}});
  EXPECT_EQ(values.text(), "test r2 0.5000\ntest loss 0.2500\nmse  0.2500\n");
}

TEST(PlainLines, TellWhereTheTimeWentAndTheShareOfTheMatmulLimit) {
  Screen screen(false);
  screen.write(start(0, 100));
  json event = end(100, false);
  event["seconds_by_kind"] = {{"backward", 20.0}, {"forward", 10.0}, {"odd", 0.0}, {"wait", 10.0}};
  event["matmul_share"] = 0.625;
  event["samples_per_second"] = 512.0;
  screen.write(event);
  EXPECT_NE(screen.text().find("loader stall 1.00 %\n"
                               "time    forward       10.00 s   25.0 %  ▪▪▪▪▪▪▪▪▪▪\n"
                               "        backward      20.00 s   50.0 %  ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪\n"
                               "        wait          10.00 s   25.0 %  ▪▪▪▪▪▪▪▪▪▪\n"
                               "        odd            0.00 s    0.0 %\n"
                               "speed   512 samples/s in the steps, 62.5 % of the matmul limit\n"),
            std::string::npos)
      << screen.text();
}

TEST(PlainLines, TellAnEarlyStop) {
  Screen screen(false);
  screen.write({{"event", "early_stop"},
                {"step", 300},
                {"watch", "accuracy"},
                {"best", 0.91},
                {"best_step", 200}});
  EXPECT_EQ(screen.text(), "step   300   early stop: the best accuracy was 0.9100, at step 200\n");
}

/// The last thing drawn on the line that is redrawn.
std::string last_drawn(const std::string& text) { return text.substr(text.rfind("\r\033[K") + 4); }

TEST(Bar, IsRedrawnOnOneLineAndFullAtTheEnd) {
  Screen screen(true);
  screen.write(start(0, 4));
  screen.write(step(1, 4));
  const std::string first = screen.text();
  EXPECT_EQ(count(first, "\r\033[K"), 1u);
  // a quarter of thirty cells, the rest in eighths
  EXPECT_EQ(count(last_drawn(first), "█"), 7u) << first;
  EXPECT_EQ(count(last_drawn(first), "▌"), 1u) << first;
  EXPECT_NE(first.find("1/4  loss 4.0000"), std::string::npos) << first;
  for (int64_t n = 2; n <= 4; ++n) screen.write(step(n, 1));
  const std::string drawn = last_drawn(screen.text());
  EXPECT_EQ(count(drawn, "█"), 30u) << drawn;
  EXPECT_NE(drawn.find("4/4  loss 1.0000  2.0 k tok/s  0:00 left"), std::string::npos) << drawn;
  EXPECT_EQ(drawn.find('\n'), std::string::npos);
}

/// Columns of a line that has no wide characters.
int width_of(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

TEST(Bar, IsNeverAsWideAsTheTerminal) {
  const Bar bars[] = {
      {0.3, "12/400", "loss 1.2345", "10.2 k tok/s", "0:10 left"},
      {1, "1000000/1000000", "loss 12345.6789", "999.99 G samples/s", "100:02:03 left"}};
  for (const Bar& bar : bars)
    for (int columns = 1; columns < 200; ++columns)
      EXPECT_LT(width_of(bar_text(bar, columns)), columns) << bar_text(bar, columns);
}

TEST(Bar, GivesUpTheRateThenTheTimeThenItselfThenTheLoss) {
  const Bar bar{0.5, "12/400", "loss 1.2345", "10.2 k tok/s", "0:10 left"};
  EXPECT_EQ(bar_text(bar, 200).substr(0, 45), "███████████████");
  EXPECT_EQ(bar_text(bar, 51), "██  ▕ 12/400  loss 1.2345  10.2 k tok/s  0:10 left");
  EXPECT_EQ(bar_text(bar, 50), "████████▌        ▕ 12/400  loss 1.2345  0:10 left");
  EXPECT_EQ(bar_text(bar, 40), "███▌   ▕ 12/400  loss 1.2345  0:10 left");
  EXPECT_EQ(bar_text(bar, 30), "████    ▕ 12/400  loss 1.2345");
  EXPECT_EQ(bar_text(bar, 20), "12/400  loss 1.2345");
  EXPECT_EQ(bar_text(bar, 19), "12/400");
  EXPECT_EQ(bar_text(bar, 4), "12/");
  EXPECT_EQ(bar_text(bar, 0), "");
}

TEST(Terminal, IsNotGivenControlCharactersOfASampleOrTheData) {
  for (const bool terminal : {true, false}) {
    Screen screen(terminal);
    screen.write({{"event", "sample"}, {"text", "a\x1b[31mb\x07\nc"}});
    EXPECT_EQ(screen.text(), terminal ? "\na\\x1b[31mb\\x07\nc\n\n" : "\na\x1b[31mb\x07\nc\n\n");
  }
}

TEST(PlainLines, CutALongListOfFaults) {
  Screen screen(false);
  screen.write({{"event", "data"},
                {"records", 5},
                {"held_out", 0},
                {"test", 0},
                {"skipped", 3000},
                {"faults", std::vector<std::string>(3000, "a fault")}});
  EXPECT_EQ(count(screen.text(), "\n"), 22u);
  EXPECT_NE(screen.text().find("\n        and 2980 more\n"), std::string::npos) << screen.text();
}

TEST(PlainLines, TellThatReductionsGoOnAlongsideTheRest) {
  Screen screen(false);
  screen.write(start(0, 100));
  json event = end(100, false);
  event["seconds_by_kind"] = {{"backward", 30.0}, {"reduce", 20.0}, {"wait", 10.0}};
  screen.write(event);
  EXPECT_NE(
      screen.text().find(
          "time    backward      30.00 s   75.0 %  ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪\n"
          "        reduce        20.00 s   50.0 %  ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪  alongside the others\n"
          "        wait          10.00 s   25.0 %  ▪▪▪▪▪▪▪▪▪▪\n"),
      std::string::npos)
      << screen.text();
}

TEST(Bar, DoesNotDrawFasterThanEyesCanSee) {
  Screen screen(true);
  screen.write(start(0, 100000));
  for (int64_t n = 1; n <= 1000; ++n) screen.write(step(n, 1));
  EXPECT_LT(count(screen.text(), "\r"), 500u);
}

TEST(Bar, GivesWayToALine) {
  Screen screen(true);
  screen.write(start(0, 10));
  screen.write(step(1, 1));
  screen.write({{"event", "eval"}, {"step", 1}, {"held_out_loss", 1.5}});
  EXPECT_NE(screen.text().find("left\nstep     1   held-out loss 1.5000\n"), std::string::npos)
      << screen.text();
}

}  // namespace
}  // namespace tutti
