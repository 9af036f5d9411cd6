#include "exec/trace.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tutti {

namespace {

Time at_us(int64_t us) { return Time(std::chrono::microseconds(us)); }

/// Two ranks, a step of forward and backward with reductions alongside.
std::vector<TraceEvent> synthetic() {
  std::vector<TraceEvent> events;
  for (int rank = 0; rank < 4; ++rank) {
    double t = 12000 + rank * 130, comm = 0;
    const auto add = [&](const char* queue, const char* name, const std::string& detail,
                         double begin, double us) {
      events.push_back({rank, queue, name, std::string(name) + detail, 7, begin, begin + us});
      return begin + us;
    };
    for (int lane = 2 * rank; lane < 2 * rank + 2; ++lane) {
      const std::string where = " lane " + std::to_string(lane);
      t = add("compute", "Load", where, t, 60);
      for (int b = 0; b < 6; ++b)
        t = add("compute", "Forward", " block " + std::to_string(b) + where, t, 700 + 90 * (b % 3));
      for (int b = 5; b >= 0; --b) {
        t = add("compute", "Backward", " block " + std::to_string(b) + where, t,
                1500 + 120 * (b % 3));
        if (lane % 2 == 0) continue;
        t = add("compute", "Fold", " unit " + std::to_string(b) + where, t, 110);
        comm = std::max(comm, t + 40);
        comm = add("data", "Reduce", " parcel " + std::to_string(5 - b), comm, 620);
        comm = add("data", "Norm", " parcel " + std::to_string(5 - b), comm, 70);
        comm = add("data", "Gather", " parcel " + std::to_string(5 - b), comm, 260);
      }
    }
    comm = add("data", "Vote", "", comm, 180);
    for (int b = 5; b >= 0; --b)
      comm = add("compute", "Update", " unit " + std::to_string(b), comm, 210);
    for (int b = 0; b < 6; ++b)
      add("data", "Acquire", " parcel " + std::to_string(b), 12000 + rank * 130 + b * 20, 15);
  }
  return events;
}

}  // namespace

TEST(Trace, KeepsTheLastRecordsOldestFirst) {
  Trace trace(3);
  for (uint32_t i = 0; i < 5; ++i) trace.add({at_us(i), at_us(i + 1), i, 0, i});
  const auto records = trace.records();
  ASSERT_EQ(records.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(records[i].index, i + 2);
}

TEST(Trace, TotalsCountEveryRecordKeptOrNot) {
  Trace trace(2);
  for (uint32_t i = 0; i < 1000; ++i) {
    trace.add({at_us(i), at_us(i + 3), i, 0, 0, Op::kForward});
    trace.add({at_us(i), at_us(i + 1), i, 1, 0, Op::kReduce});
    trace.add_wait(2, std::chrono::microseconds(2));
  }
  EXPECT_EQ(trace.records().size(), 2u);
  EXPECT_DOUBLE_EQ(trace.seconds(Op::kForward), 3e-3);
  EXPECT_DOUBLE_EQ(trace.seconds(Op::kReduce), 1e-3);
  EXPECT_EQ(trace.seconds(Op::kBackward), 0);
  EXPECT_DOUBLE_EQ(trace.waited(2), 2e-3);
  EXPECT_EQ(trace.waited(0), 0);
  EXPECT_EQ(trace.waited(7), 0);
}

TEST(Trace, EventsCarryTheProgramsNamesAndTimesFromTheOrigin) {
  Program program;
  program.rank = 2;
  Instruction reduce;
  reduce.op = Op::kReduce, reduce.parcel = 4;
  program.queues = {{"compute", {}}, {"data", {reduce}}};
  Trace trace;
  trace.add({at_us(150), at_us(175), 9, 1, 0});
  const auto events = trace_events(trace, program, at_us(100), 30);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].rank, 2);
  EXPECT_EQ(events[0].queue, "data");
  EXPECT_EQ(events[0].name, "Reduce");
  EXPECT_EQ(events[0].detail, "Reduce parcel 4");
  EXPECT_EQ(events[0].step, 40u) << "the 10th of a trace that began after 30";
  EXPECT_DOUBLE_EQ(events[0].begin_us, 50);
  EXPECT_DOUBLE_EQ(events[0].end_us, 75);
}

TEST(Trace, ALineParsesBackToItsEvent) {
  const TraceEvent event{3, "data", "Reduce", "Reduce \"x\" \\ parcel 1", 12, 1.25, 3.5};
  const TraceEvent back = parse_trace_line(trace_line(event));
  EXPECT_EQ(trace_line(back), trace_line(event));
  EXPECT_EQ(back.detail, event.detail);
  EXPECT_EQ(trace_line(event).find('\n'), std::string::npos);
  EXPECT_THROW(parse_trace_line("{\"rank\": 1}"), Error);
  EXPECT_THROW(parse_trace_line("{\"rank\": 1, "), Error);
}

TEST(Trace, ChromeTraceIsJsonWithAnEventPerInstructionAndNamesOfRanksAndQueues) {
  const auto events = synthetic();
  const auto j = nlohmann::json::parse(chrome_trace(events));
  size_t spans = 0;
  std::set<std::string> names;
  std::map<std::pair<int, int>, std::string> queue;
  for (const auto& e : j.at("traceEvents")) {
    if (e.at("ph") == "M") {
      names.insert(e.at("args").at("name"));
      if (e.at("name") == "thread_name")
        queue[{e.at("pid"), e.at("tid")}] = e.at("args").at("name");
      continue;
    }
    ASSERT_EQ(e.at("ph"), "X");
    const TraceEvent& expected = events[spans++];
    EXPECT_EQ(e.at("name"), expected.name);
    EXPECT_EQ(e.at("pid"), expected.rank);
    EXPECT_EQ((queue[{e.at("pid"), e.at("tid")}]), expected.queue);
    EXPECT_DOUBLE_EQ(e.at("ts"), expected.begin_us);
    // a difference of doubles near 1e5
    EXPECT_NEAR(e.at("dur"), expected.end_us - expected.begin_us, 1e-6);
  }
  EXPECT_EQ(spans, events.size());
  EXPECT_EQ(names,
            (std::set<std::string>{"rank 0", "rank 1", "rank 2", "rank 3", "compute", "data"}));
}

TEST(Trace, SvgHasARowPerQueueALegendAndABarPerInstructionOfTheStep) {
  auto events = synthetic();
  const size_t in_step = events.size();
  events.push_back({0, "compute", "Load", "Load <of & another> step", 8, 1, 2});
  const std::string svg = svg_trace(events, 7);
  const auto count = [&svg](const std::string& text) {
    size_t n = 0;
    for (size_t at = svg.find(text); at != std::string::npos; at = svg.find(text, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<title>"), in_step);
  EXPECT_EQ(count(">compute</text>"), 4u);
  EXPECT_EQ(count(">data</text>"), 4u);
  EXPECT_EQ(count(">rank 2</text>"), 1u);
  std::set<std::string> names;
  for (const TraceEvent& e : events) names.insert(e.name);
  for (const std::string& name : names) EXPECT_EQ(count(">" + name + "</text>"), 1u) << name;
  EXPECT_EQ(count(">ms</text>"), 1u);
  const std::string other = svg_trace(events, 8);
  EXPECT_NE(other.find("Load &lt;of &amp; another&gt; step"), std::string::npos);
  EXPECT_EQ(other.find("another> step"), std::string::npos);
}

TEST(Trace, SvgNamesEveryInstructionOfAPlanInTheLegend) {
  for (int op = 0; op < kOps; ++op) {
    const std::string name = op_name(static_cast<Op>(op));
    EXPECT_NE(svg_trace({{0, "data", name, name, 7, 1, 2}}, 7).find(">" + name + "</text>"),
              std::string::npos)
        << name;
  }
}

TEST(Trace, SvgOfAStepThatWasNotRecordedSaysSo) {
  EXPECT_NE(svg_trace(synthetic(), 3).find("no instruction was recorded"), std::string::npos);
}

}  // namespace tutti
