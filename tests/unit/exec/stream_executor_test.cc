// Programs on streams: in which order they are issued, and what reaches the device, seen by a
// device that only takes notes.
#include "exec/stream_executor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "base/error.h"
#include "unit/plan/sample_meshes.h"

namespace tutti {
namespace {

Instruction make(Op op, int number, std::vector<int> waits = {}, int signal = -1) {
  Instruction i;
  i.op = op, i.id = static_cast<uint32_t>(number), i.block = number;
  i.waits = std::move(waits);
  i.signal = signal;
  return i;
}

/// compute: 1, then 2 after event 0; data: 10 after event 1, which signals event 0. Instruction 1
/// signals event 1.
Program ping_pong() {
  Program program;
  program.events = 2;
  program.queues = {{"compute", {make(Op::kForward, 1, {}, 1), make(Op::kUpdate, 2, {0})}},
                    {"data", {make(Op::kReduce, 10, {1}, 0)}}};
  return program;
}

/// Streams are s0, s1, ...; events e0, e1, ..., in the order in which they were made. Event n is
/// recorded "on the device" `n` seconds after event 0, and has run unless it is the one that hangs.
class NotingDevice final : public Device {
 public:
  std::vector<std::string> notes;
  std::set<std::string> hanging;
  std::set<std::string> timed;

  Stream make_stream() override { return {&names_.emplace_back(fmt::format("s{}", streams_++))}; }
  StreamEvent make_event(bool with_time) override {
    std::string& name = names_.emplace_back(fmt::format("e{}", events_++));
    if (with_time) timed.insert(name);
    return {&name};
  }
  static const std::string& name(Stream stream) {
    return *static_cast<std::string*>(stream.handle);
  }
  static const std::string& name(StreamEvent event) {
    return *static_cast<std::string*>(event.handle);
  }
  void record(StreamEvent event, Stream stream) override {
    notes.push_back(fmt::format("{} record {}", name(stream), name(event)));
  }
  void wait(Stream stream, StreamEvent event, bool) override {
    notes.push_back(fmt::format("{} wait {}", name(stream), name(event)));
  }
  bool done(StreamEvent event) const override { return !hanging.contains(name(event)); }
  double seconds(StreamEvent from, StreamEvent to) const override {
    return std::stod(name(to).substr(1)) - std::stod(name(from).substr(1));
  }

  const DeviceInfo& info() const override { return info_; }
  int64_t free_bytes() const override { return 0; }
  std::span<std::byte> take(BufferKind, size_t) override { return {}; }
  void give_back(std::span<std::byte>) override {}
  std::span<std::byte> take_pinned(size_t) override { return {}; }
  void give_back_pinned(std::span<std::byte>) override {}
  void copy(Stream, void*, const void*, size_t) override {}
  void zero(Stream, void*, size_t) override {}
  void make_current(Stream) override {}
  void synchronise(Stream) override { notes.push_back("synchronise"); }
  bool captures() const override { return false; }
  void begin_capture(Stream) override {}
  CapturedStep end_capture(Stream) override { return {}; }
  void launch(const CapturedStep&, Stream) override {}
  void destroy(CapturedStep) override {}
  void reserve_pool(int64_t) override {}
  PoolUse pool() const override { return {}; }
  void reset_pool_peak() override {}

 private:
  DeviceInfo info_;
  std::deque<std::string> names_;
  int streams_ = 0, events_ = 0;
};

/// Every op notes its instruction and stream.
StreamHandlers noting(NotingDevice& device) {
  StreamHandlers handlers;
  handlers.fill([&device](const Instruction& i, Stream stream) {
    device.notes.push_back(fmt::format("{} run {}", NotingDevice::name(stream), i.id));
  });
  return handlers;
}

std::vector<Stream> streams_for(const Program& program, NotingDevice& device) {
  std::vector<Stream> streams;
  for (size_t q = 0; q < program.queues.size(); ++q) streams.push_back(device.make_stream());
  return streams;
}

/// What is wrong with the order in which the program is issued; empty: nothing.
std::string fault_of(const Program& program, const std::vector<QueuePlace>& order) {
  std::vector<int> next(program.queues.size());
  std::vector<bool> recorded(program.events);
  for (const QueuePlace& place : order) {
    if (next[place.queue]++ != place.index)
      return fmt::format("queue {} is out of order", place.queue);
    const Instruction& i = program.queues[place.queue].instructions[place.index];
    for (int event : i.waits)
      if (!recorded[event])
        return fmt::format("{} waits for event {} before it is recorded", to_string(i), event);
    if (i.signal >= 0) recorded[i.signal] = true;
  }
  for (size_t q = 0; q < program.queues.size(); ++q)
    if (next[q] != static_cast<int>(program.queues[q].instructions.size()))
      return fmt::format("queue {} has {} of {} instructions", q, next[q],
                         program.queues[q].instructions.size());
  return "";
}

Plan two_ranks(bool tied) {
  MeshOptions options;
  options.mesh.data = 2, options.batch = {5, 2, 1};
  return plan_mesh(test::mesh_model({4, 1, tied}), options);
}

size_t at(const std::vector<std::string>& notes, const std::string& note) {
  const auto found = std::find(notes.begin(), notes.end(), note);
  EXPECT_NE(found, notes.end()) << note;
  return static_cast<size_t>(found - notes.begin());
}

TEST(IssueOrder, IsTheOnlyOneWhereThereIsOne) {
  EXPECT_EQ(issue_order(ping_pong()), (std::vector<QueuePlace>{{0, 0}, {1, 0}, {0, 1}}));
}

TEST(IssueOrder, OfEveryProgramHasEventsRecordedBeforeTheyAreWaitedFor) {
  int programs = 0, crossing = 0;
  for (bool tied : {false, true})
    for (int ranks : {1, 2, 3, 5})
      for (int lanes : {5, 8})
        for (int micro_batches : {1, 3})
          for (bool overlap : {false, true})
            for (int64_t merged_floats : {0, 9000, 1 << 20}) {
              MeshOptions options;
              options.mesh.data = ranks, options.batch = {lanes, micro_batches, 1};
              options.overlap = overlap, options.bucket_floats = merged_floats;
              const test::MeshModel model{5, 1, tied};
              for (const Program& program : plan_mesh(test::mesh_model(model), options).programs) {
                const std::vector<QueuePlace> order = issue_order(program);
                EXPECT_EQ(fault_of(program, order), "")
                    << test::name_of(model, options) << ", rank " << program.rank;
                ++programs;
                crossing += program.events > 0 ? 1 : 0;
              }
            }
  EXPECT_GT(programs, 500);
  EXPECT_GT(crossing, 200) << "these programs must have queues that wait for each other";
}

TEST(IssueOrder, WhatOthersMayWaitForComesAsSoonAsItCan) {
  Program program;
  program.events = 2;
  program.queues = {
      {"compute",
       {make(Op::kForward, 1, {}, 1), make(Op::kBackward, 2), make(Op::kUpdate, 3, {0})}},
      {"data", {make(Op::kReduce, 10, {}, 0), make(Op::kGather, 11, {1})}},
      {"out", {make(Op::kSend, 20, {1})}}};
  EXPECT_EQ(issue_order(program),
            (std::vector<QueuePlace>{{1, 0}, {0, 0}, {1, 1}, {2, 0}, {0, 1}, {0, 2}}));
}

TEST(IssueOrder, AnEventThatNothingSignalsIsAnError) {
  Program program = ping_pong();
  program.queues[1].instructions[0].signal = -1;
  EXPECT_THROW(issue_order(program), Error);
}

TEST(IssueOrder, QueuesThatWaitForEachOtherAreAnError) {
  Program program;
  program.events = 2;
  program.queues = {{"compute", {make(Op::kForward, 1, {0}, 1)}},
                    {"data", {make(Op::kReduce, 2, {1}, 0)}}};
  EXPECT_THROW(issue_order(program), Error);
}

TEST(StreamExecutor, WaitsAndRecordsStandAroundTheirInstructionsAndFirstJoinsAllQueues) {
  const Program program = ping_pong();
  NotingDevice device;
  const std::vector<Stream> streams = streams_for(program, device);
  StreamExecutor executor(program, noting(device), device, streams);
  executor.issue(streams[0], false);
  // e0 and e1 are the program's, e2 says that `first` got here, e4 that queue 1 has ended.
  EXPECT_EQ(device.notes,
            (std::vector<std::string>{"s0 record e2", "s1 wait e2", "s0 run 1", "s0 record e1",
                                      "s1 wait e1", "s1 run 10", "s1 record e0", "s0 wait e0",
                                      "s0 run 2", "s1 record e4", "s0 wait e4"}));
  EXPECT_TRUE(device.timed.empty()) << "times cost something: no event of an untimed issue has one";
}

TEST(StreamExecutor, EveryFurtherIssueIsTheSame) {
  const Program program = two_ranks(true).programs[1];
  NotingDevice device;
  const std::vector<Stream> streams = streams_for(program, device);
  StreamExecutor executor(program, noting(device), device, streams);
  executor.issue(streams[0], false);
  const std::vector<std::string> once = std::exchange(device.notes, {});
  ASSERT_FALSE(once.empty());
  executor.issue(streams[0], true);
  device.notes.clear();
  executor.issue(streams[0], false);
  EXPECT_EQ(device.notes, once);
}

TEST(StreamExecutor, AnotherFirstStreamTakesThePlaceOfComputeOnly) {
  const Program program = ping_pong();
  NotingDevice device;
  const std::vector<Stream> streams = streams_for(program, device);
  const Stream captures = device.make_stream();
  StreamExecutor executor(program, noting(device), device, streams);
  executor.issue(captures, false);
  for (const std::string& note : device.notes) EXPECT_FALSE(note.starts_with("s0 ")) << note;
  EXPECT_EQ(device.notes.front(), "s2 record e2");
  EXPECT_EQ(device.notes.back(), "s2 wait e4");
  EXPECT_LT(at(device.notes, "s2 run 1"), at(device.notes, "s1 run 10"));
}

TEST(StreamExecutor, EveryQueueBeginsAfterFirstAndEndsBeforeWhatComesNext) {
  Program program = ping_pong();
  program.queues.push_back({"more", {make(Op::kVote, 20)}});
  program.queues.push_back({"idle", {}});
  NotingDevice device;
  const std::vector<Stream> streams = streams_for(program, device);
  StreamExecutor executor(program, noting(device), device, streams);
  executor.issue(streams[0], false);
  for (int q = 1; q < 4; ++q) {
    const std::string stream = fmt::format("s{} ", q);
    const auto mine = [&](const std::string& note) { return note.starts_with(stream); };
    EXPECT_EQ(*std::find_if(device.notes.begin(), device.notes.end(), mine), stream + "wait e2");
    const std::string last = *std::find_if(device.notes.rbegin(), device.notes.rend(), mine);
    ASSERT_TRUE(last.starts_with(stream + "record ")) << last;
    const std::string joined = "s0 wait " + last.substr(last.rfind(' ') + 1);
    EXPECT_GT(at(device.notes, joined), at(device.notes, last));
  }
}

TEST(StreamExecutor, NothingIsWaitedForOnTheHost) {
  const Program program = two_ranks(false).programs[0];
  NotingDevice device;
  const std::vector<Stream> streams = streams_for(program, device);
  StreamExecutor executor(program, noting(device), device, streams);
  for (bool timed : {true, false, true}) executor.issue(streams[0], timed);
  EXPECT_EQ(std::count(device.notes.begin(), device.notes.end(), "synchronise"), 0);
}

TEST(StreamExecutor, ATimedIssueGivesTheTraceItsTimesOnTheDevice) {
  const Program program = ping_pong();
  NotingDevice device;
  const std::vector<Stream> streams = streams_for(program, device);
  StreamExecutor executor(program, noting(device), device, streams);
  executor.issue(streams[0], true);
  // e5 is the origin; then come begin and end of every instruction, queue by queue.
  EXPECT_EQ(device.notes.front(), "s0 record e5");
  EXPECT_EQ(device.timed, (std::set<std::string>{"e5", "e6", "e7", "e8", "e9", "e10", "e11"}));
  // What an instruction waits for does not count as its time; what others wait for comes after it.
  EXPECT_LT(at(device.notes, "s1 wait e1"), at(device.notes, "s1 record e10"));
  EXPECT_LT(at(device.notes, "s1 record e10"), at(device.notes, "s1 run 10"));
  EXPECT_LT(at(device.notes, "s1 run 10"), at(device.notes, "s1 record e11"));

  Trace trace;
  const Time begin{std::chrono::seconds(1000)};
  executor.collect(trace, 42, begin);
  const std::vector<TraceRecord> records = trace.records();
  ASSERT_EQ(records.size(), 3u);
  struct Expected {
    int begin, end;
    uint32_t queue, index;
    Op op;
  };
  const Expected expected[] = {
      {1, 2, 0, 0, Op::kForward}, {3, 4, 0, 1, Op::kUpdate}, {5, 6, 1, 0, Op::kReduce}};
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].begin, begin + std::chrono::seconds(expected[i].begin)) << i;
    EXPECT_EQ(records[i].end, begin + std::chrono::seconds(expected[i].end)) << i;
    EXPECT_EQ(records[i].step, 42u) << i;
    EXPECT_EQ(records[i].queue, expected[i].queue) << i;
    EXPECT_EQ(records[i].index, expected[i].index) << i;
    EXPECT_EQ(records[i].op, expected[i].op) << i;
  }
}

TEST(StreamExecutor, WhatHasNotEndedIsNamedInTheOrderOfIssue) {
  const Program program = ping_pong();
  NotingDevice device;
  const std::vector<Stream> streams = streams_for(program, device);
  StreamExecutor executor(program, noting(device), device, streams);
  EXPECT_EQ(executor.unfinished(), "") << "nothing was issued";
  executor.issue(streams[0], true);
  EXPECT_EQ(executor.unfinished(), "") << "all has run";
  device.hanging = {"e9", "e11"};  // 2 on compute and, before it, 10 on data
  EXPECT_EQ(executor.unfinished(), describe(program.queues[1].instructions[0]));
  device.hanging = {"e9"};
  EXPECT_EQ(executor.unfinished(), describe(program.queues[0].instructions[1]));
  executor.issue(streams[0], false);
  EXPECT_EQ(executor.unfinished(), "") << "an untimed issue has no times to look at";
}

TEST(StreamExecutorDeath, AnOpWithoutAHandlerIsABrokenPromise) {
  const Program program = ping_pong();
  NotingDevice device;
  StreamHandlers handlers = noting(device);
  handlers[static_cast<int>(Op::kReduce)] = nullptr;
  EXPECT_DEATH(StreamExecutor(program, handlers, device, streams_for(program, device)),
               "no handler for");
}

}  // namespace
}  // namespace tutti
