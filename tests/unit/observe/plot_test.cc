// The structure of the picture and the curves read from a run. How it looks was looked at.
#include "observe/plot.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace tutti {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// A loss that falls from 5 towards 1, evaluated now and then.
Curve falling(const std::string& name, int64_t steps) {
  Curve curve{name, {}, {}};
  for (int64_t i = 1; i <= steps; ++i) {
    const auto x = static_cast<double>(i);
    curve.training.emplace_back(x, 1 + 4 / std::sqrt(x) + 0.1 * std::sin(x * x));
    if (i % std::max<int64_t>(steps / 5, 1) == 0)
      curve.held_out.emplace_back(x, 1.1 + 4 / std::sqrt(x));
  }
  return curve;
}

void expect_whole(const std::string& svg) {
  EXPECT_EQ(svg.substr(0, 4), "<svg");
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  for (const char* never : {"nan", "NaN", "inf"}) EXPECT_EQ(count(svg, never), 0u) << never;
  EXPECT_EQ(count(svg, "<text "), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "<polyline "), count(svg, "</polyline>"));
  EXPECT_NE(svg.find("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"), std::string::npos);
}

/// The pixels of the first polyline of a class.
std::vector<std::pair<double, double>> pixels(const std::string& svg, const std::string& kind) {
  size_t at = svg.find("points=\"", svg.find("<polyline class=\"" + kind + "\"")) + 8;
  std::vector<std::pair<double, double>> list;
  std::istringstream in(svg.substr(at, svg.find('"', at) - at));
  for (std::string pair; in >> pair;)
    list.emplace_back(std::stod(pair), std::stod(pair.substr(pair.find(',') + 1)));
  return list;
}

TEST(Plot, HasAPolylineOfEachKindPerRunInAColourOfItsOwn) {
  for (size_t runs : {1, 2, 8, 9, 12, 30, 100}) {
    std::vector<Curve> curves;
    for (size_t i = 0; i < runs; ++i)
      curves.push_back(falling("run " + std::to_string(i), 100 + 300 * static_cast<int64_t>(i)));
    const std::string svg = plot_svg(curves, "loss");
    expect_whole(svg);
    for (const char* kind : {"original", "training", "held-out"})
      EXPECT_EQ(count(svg, std::string("<polyline class=\"") + kind + "\""), runs) << kind;
    for (size_t i = 0; i < runs; ++i)
      EXPECT_EQ(count(svg, ">run " + std::to_string(i) + "</text>"), 1u);
    EXPECT_EQ(count(svg, "class=\"sample\""), runs);
  }
}

TEST(Plot, PutsTheLastValuesIntoTheLegend) {
  const Curve curve{"x", {{1, 3}, {2, 2.5}}, {{2, 2.75}}};
  const std::string svg = plot_svg({curve}, "loss");
  EXPECT_NE(svg.find(">training 2.500, held-out 2.750</text>"), std::string::npos) << svg;
}

TEST(Plot, EscapesNamesAndShortensLongOnes) {
  const std::string svg =
      plot_svg({falling("a<b>&\"c\"", 10), falling(std::string(100, 'x'), 10)}, "l<oss");
  expect_whole(svg);
  EXPECT_NE(svg.find(">a&lt;b&gt;&amp;&quot;c&quot;</text>"), std::string::npos);
  EXPECT_NE(svg.find(">l&lt;oss</text>"), std::string::npos);
  EXPECT_EQ(svg.find("a<b"), std::string::npos);
  EXPECT_NE(svg.find(">" + std::string(12, 'x') + "…" + std::string(13, 'x') + "</text>"),
            std::string::npos);
}

/// An attribute of every tag that has this text in it.
std::vector<std::string> all_of(const std::string& svg, const std::string& tag,
                                const std::string& name) {
  std::vector<std::string> values;
  for (size_t at = svg.find(tag); at != std::string::npos; at = svg.find(tag, at + 1)) {
    const std::string whole = svg.substr(at, svg.find('>', at) - at);
    const size_t value = whole.find(" " + name + "=\"");
    values.push_back(value == std::string::npos ? "" : whole.substr(value + name.size() + 3));
    values.back().resize(std::min(values.back().size(), values.back().find('"')));
  }
  return values;
}

TEST(Plot, ManyRunsShareNoColourAndTheLegendDoesNotOverlap) {
  for (size_t runs : {2, 8, 9, 12, 30, 100}) {
    std::vector<Curve> curves;
    for (size_t i = 0; i < runs; ++i)
      curves.push_back(
          falling("a-long-name-that-all-of-these-runs-share-" + std::to_string(i), 50));
    const std::string svg = plot_svg(curves, "loss");
    expect_whole(svg);
    const auto colours = all_of(svg, "class=\"training\"", "stroke");
    EXPECT_EQ(std::set<std::string>(colours.begin(), colours.end()).size(), runs);
    EXPECT_EQ(all_of(svg, "class=\"sample\"", "stroke"), colours);
    const auto patterns = all_of(svg, "class=\"training\"", "stroke-dasharray");
    EXPECT_EQ(all_of(svg, "class=\"sample\"", "stroke-dasharray"), patterns);
    for (size_t i = 0; i + 1 < runs && runs > 8; ++i) EXPECT_NE(patterns[i], patterns[i + 1]);

    // Every entry has a cell of its own, within the picture and outside of the plot.
    const double width = std::stod(all_of(svg, "<svg", "width").at(0)),
                 height = std::stod(all_of(svg, "<svg", "height").at(0));
    const double bottom = 64 + 470, right = std::stod(all_of(svg, "<line", "x2").at(0));
    std::vector<std::pair<double, double>> places;
    for (const std::string& d : all_of(svg, "class=\"sample\"", "d"))
      places.emplace_back(std::stod(d.substr(1)), std::stod(d.substr(d.find(' '))));
    for (size_t i = 0; i < runs; ++i) {
      const auto [x, y] = places[i];
      EXPECT_LE(x + 284, width + 1);
      EXPECT_LE(y + 22, height);
      EXPECT_TRUE(x > right || y > bottom + 50) << i;
      for (size_t j = 0; j < i; ++j)
        EXPECT_TRUE(std::abs(x - places[j].first) >= 284 || std::abs(y - places[j].second) >= 40)
            << i << " on " << j;
      EXPECT_EQ(count(svg, "share-" + std::to_string(i) + "</text>"), 1u)
          << "what tells the names apart is left out";
    }
  }
}

TEST(Plot, ALogarithmicAxisHasReadableLabelsOverAnyNumberOfDecades) {
  for (double decades : {1.8, 2.0, 3.0, 3.2, 7.0, 12.0, 40.0, 150.0}) {
    for (double low : {1e-70, 3e-3, 7.0}) {
      const Curve curve{"x", {{1, low}, {2, low * std::pow(10, decades)}}, {}};
      const std::string svg = plot_svg({curve}, "loss");
      if (low * std::pow(10, decades) > 1e99) continue;
      expect_whole(svg);
      EXPECT_EQ(count(svg, ">logarithmic</text>"), 1u);
      EXPECT_EQ(count(svg, "text-anchor=\"end\">0</text>"), 0u) << "there is no zero";
      std::vector<double> at;
      for (size_t from = svg.find("<text x=\"66.0\""); from != std::string::npos;
           from = svg.find("<text x=\"66.0\"", from + 1))
        at.push_back(std::stod(svg.substr(svg.find(" y=\"", from) + 4)));
      EXPECT_GE(at.size(), 3u) << decades << " decades from " << low;
      for (size_t i = 0; i + 1 < at.size(); ++i)
        EXPECT_GE(at[i] - at[i + 1], 14) << decades << " decades from " << low;
    }
  }
}

TEST(Plot, LeavesOutWhatIsNotFinite) {
  Curve curve = falling("run", 50);
  curve.training[7].second = std::nan("");
  curve.training[8].second = std::numeric_limits<double>::infinity();
  curve.training[9].second = 1e308;
  curve.held_out[1].second = -std::numeric_limits<double>::infinity();
  const std::string svg = plot_svg({curve}, "loss");
  expect_whole(svg);
  EXPECT_EQ(pixels(svg, "training").size(), 47u);
  EXPECT_EQ(pixels(svg, "held-out").size(), 4u);
}

TEST(Plot, SaysWhichRunHasNoValuesAndWhenNoneHas) {
  const Curve nothing{"nothing", {{1, std::nan("")}}, {}};
  const std::string some = plot_svg({falling("run", 10), nothing}, "loss");
  expect_whole(some);
  EXPECT_EQ(count(some, ">no values</text>"), 1u);
  EXPECT_EQ(count(some, "class=\"training\""), 1u);
  for (const auto& curves : {std::vector<Curve>{nothing}, std::vector<Curve>{}}) {
    const std::string svg = plot_svg(curves, "loss");
    expect_whole(svg);
    EXPECT_EQ(count(svg, ">no values to draw</text>"), 1u);
  }
}

TEST(Plot, OfAMillionStepsIsNoLargerThanThePixelsAsk) {
  const std::string svg = plot_svg({falling("long", 1000000)}, "loss");
  expect_whole(svg);
  EXPECT_LT(svg.size(), 100000u);
  EXPECT_LE(pixels(svg, "original").size(), 4 * 762u);
  EXPECT_GE(pixels(svg, "original").size(), 1500u);
}

TEST(Plot, KeepsASpikeThatOneStepInAMillionHas) {
  Curve curve = falling("long", 1000000);
  curve.training[700000].second = 4.9;
  curve.held_out.push_back({1000000, 5});
  double highest = 1e9;
  for (const auto& [x, y] : pixels(plot_svg({curve}, "loss"), "original"))
    if (x > 500) highest = std::min(highest, y);
  EXPECT_LT(highest, 120);  // close to the top, where 5 is
}

TEST(Plot, IsLogarithmicWhereValuesSpanMoreThanFiftyfold) {
  const auto drop = [](double low) {
    // Halfway from 100 down to `low` in ratio: the middle of a logarithmic axis, and not of a plain
    // one.
    const Curve curve{"x", {{0, 100}, {1, std::sqrt(100 * low)}, {2, low}}, {}};
    const auto at = pixels(plot_svg({curve}, "loss"), "training");
    return (at[1].second - at[0].second) / (at[2].second - at[0].second);
  };
  EXPECT_NEAR(drop(1), 0.5, 1e-3);  // pixels are written with a digit
  EXPECT_GT(drop(4), 0.6);
  const Curve with_zero{"x", {{0, 100}, {1, 0}, {2, 50}}, {}};
  const auto at = pixels(plot_svg({with_zero}, "loss"), "training");
  EXPECT_NEAR((at[2].second - at[0].second) / (at[1].second - at[0].second), 0.5, 1e-3);
}

TEST(Plot, HasTicksAtNiceNumbers) {
  const std::string svg = plot_svg({Curve{"x", {{0, 1}, {100, 3}}, {}}}, "loss");
  for (const char* label : {">0<", ">10<", ">50<", ">100<", ">1.5<", ">2.5<"})
    EXPECT_EQ(count(svg, label), 1u) << label;
  const std::string few = plot_svg({Curve{"x", {{1, 1}, {2, 1}}, {}}}, "loss");
  expect_whole(few);
  EXPECT_EQ(count(few, ">1.2<"), 0u);  // there is no step 1.2
}

TEST(Plot, DrawsASinglePointAsADot) {
  const std::string svg = plot_svg({Curve{"x", {{5, 1}}, {}}}, "loss");
  expect_whole(svg);
  EXPECT_EQ(count(svg, "<circle "), 1u);
}

TEST(Plot, SmoothsWhatFallsByManyDecades) {
  Curve curve{"x", {}, {}};
  for (int i = 0; i < 1000; ++i)
    curve.training.emplace_back(i, std::pow(10, -0.04 * i) * (1 + 0.1 * (i % 2)));
  const auto smooth = pixels(plot_svg({curve}, "loss"), "training");
  for (size_t i = 0; i + 1 < smooth.size(); ++i)
    EXPECT_LT(smooth[i].second, smooth[i + 1].second + 1) << i;
  EXPECT_NEAR(smooth[smooth.size() / 2].second, (smooth.front().second + smooth.back().second) / 2,
              30);
}

TEST(Plot, SmoothsNoiseAwayAndKeepsTheSteepBeginning) {
  Curve curve{"x", {}, {}};
  for (int i = 0; i < 5000; ++i)
    curve.training.emplace_back(i, 2 + 8 * std::exp(-i / 20.0) + (i % 2 == 0 ? 0.5 : -0.5));
  const auto smooth = pixels(plot_svg({curve}, "loss"), "training"),
             rough = pixels(plot_svg({curve}, "loss"), "original");
  EXPECT_NEAR(smooth[0].second, rough[0].second, 0.2);
  double roughest = 0, smoothest = 0;
  for (size_t i = smooth.size() / 2; i + 1 < smooth.size(); ++i)
    smoothest = std::max(smoothest, std::abs(smooth[i + 1].second - smooth[i].second));
  for (size_t i = rough.size() / 2; i + 1 < rough.size(); ++i)
    roughest = std::max(roughest, std::abs(rough[i + 1].second - rough[i].second));
  EXPECT_LT(smoothest, 0.05 * roughest);
}

class RunOnDisk : public ::testing::Test {
 protected:
  RunOnDisk()
      : folder_(std::filesystem::temp_directory_path() /
                ("tutti_plot_" + std::to_string(getpid()) + "/my-run")) {
    std::filesystem::create_directories(folder_);
  }
  ~RunOnDisk() override { std::filesystem::remove_all(folder_.parent_path()); }
  void write(const std::string& text) {
    write_file_atomic((folder_ / "metrics.jsonl").string(), text);
  }
  std::string error(const std::string& metric) const {
    try {
      read_curve(folder_.string(), metric);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  std::filesystem::path folder_;
};

using Points = std::vector<std::pair<double, double>>;

TEST_F(RunOnDisk, GivesItsCurves) {
  write(R"({"event":"step","step":1,"loss":5.0,"lr":0.1}
{"event":"step","step":2,"loss":null,"lr":0.2}
{"event":"eval","step":2,"held_out_loss":4.5,)"
        R"("metrics":{"loss":4.5,"accuracy":0.5,"confusion":[[1]]},)"
        R"("baseline":{"name":"truth","loss":4.25}}
{"event":"step","step":3,"loss":4.0,"lr":0.3}
{"event":"test","step":3,"metrics":{"loss":9,"accuracy":0.9}}
{"event":"step","step":4,"lo)");
  const Curve loss = read_curve(folder_.string() + "/", "loss");
  EXPECT_EQ(loss.name, "my-run");
  EXPECT_EQ(loss.training, (Points{{1, 5}, {3, 4}}));
  EXPECT_EQ(loss.held_out, (Points{{2, 4.5}}));
  const Curve accuracy = read_curve(folder_.string(), "accuracy");
  EXPECT_TRUE(accuracy.training.empty());
  EXPECT_EQ(accuracy.held_out, (Points{{2, 0.5}}));
  EXPECT_EQ(read_curve(folder_.string(), "baseline").held_out, (Points{{2, 4.25}}));
  EXPECT_EQ(read_curve(folder_.string(), "lr").training, (Points{{1, 0.1}, {2, 0.2}, {3, 0.3}}));
}

TEST_F(RunOnDisk, StepsDoneAgainReplaceTheOldOnes) {
  write(
      "{\"event\":\"step\",\"step\":1,\"loss\":5}\n{\"event\":\"step\",\"step\":2,\"loss\":4}\n"
      "{\"event\":\"step\",\"step\":3,\"loss\":3}\n{\"event\":\"step\",\"step\":2,\"loss\":7}\n");
  EXPECT_EQ(read_curve(folder_.string(), "loss").training, (Points{{1, 5}, {2, 7}}));
}

TEST_F(RunOnDisk, WithoutWhatIsAskedForIsAnErrorThatSaysWhatThereIs) {
  EXPECT_EQ(error("loss"), folder_.string() + " has no metrics.jsonl: it is no run's folder");
  write("");
  EXPECT_EQ(error("loss"), folder_.string() + " has no metrics yet: no step was committed");
  write(
      "{\"event\":\"step\",\"step\":1,\"loss\":5,\"lr\":1}\n{\"event\":\"eval\",\"step\":1,"
      "\"metrics\":{\"f1\":1}}\n");
  EXPECT_EQ(error("f2"), folder_.string() + " has no metric \"f2\"; it has f1, loss, lr");
  write("{\"event\":\"step\",\"step\":1,\"loss\":5}\nnonsense\n");
  EXPECT_NE(error("loss").find("metrics.jsonl:2: not a line of metrics"), std::string::npos)
      << error("loss");
  EXPECT_THROW(read_curve(folder_.string() + "-not", "loss"), Error);
}

}  // namespace
}  // namespace tutti
