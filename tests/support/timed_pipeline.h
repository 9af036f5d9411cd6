// A pipeline whose blocks wait instead of computing: real programs of plan/make/plan_mesh.h on real
// executors over tcp, a thread per queue of every stage. Torch-free and asleep most of the time, so
// that eight stages run on two cores.
//
//   t    what a chunk's forward takes; both parts of its backward take as long, together or apart
//
// Sends and receives carry real bytes; the vote is a barrier, and whatever else the program says is
// done in no time.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/collectives.h"
#include "comm/posted.h"
#include "exec/executor.h"
#include "net/make.h"
#include "plan/make/pipeline_schedule.h"
#include "plan/make/plan_mesh.h"

namespace tutti::test {

struct TimedPipeline {
  std::string schedule = "1f1b";
  int stages = 4;
  int chunks = 2;  ///< a stage, for interleaved
  int micro_batches = 8;
  int layers = 2;  ///< a chunk
  Duration forward{0};
  int steps = 1;
};

struct TimedCell {
  Cell cell;
  CellTime time;  ///< seconds on one clock for all stages
};

struct TimedStep {
  std::vector<std::vector<TimedCell>> cells;  ///< by stage
  /// seconds that a stage spent in the vote, over all stages
  double vote = 0;
  /// seconds from the first cell of all to the last vote's end
  double length = 0;
  std::vector<std::vector<CellTime>> times() const {
    std::vector<std::vector<CellTime>> all(cells.size());
    for (size_t s = 0; s < cells.size(); ++s)
      for (const TimedCell& cell : cells[s]) all[s].push_back(cell.time);
    return all;
  }
};

/// Layers of equal cost that hand on one small tensor.
inline ModelShape timed_model(int layers) {
  constexpr int64_t kBytes = 256;
  ModelShape model;
  model.data_bytes = {kBytes};
  for (int layer = 0; layer < layers; ++layer) {
    BlockShape block;
    block.name = fmt::format("blocks.{}", layer);
    block.layer = layer;
    ParameterShape weight;
    weight.name = block.name + ".weight";
    weight.dims = {kAlign};
    weight.size = block.unit_size = block.gradient_size = kAlign;
    block.parameters = {weight};
    SegmentShape segment;
    segment.name = "wait";
    segment.splits = true;
    segment.saved_bytes = segment.deferred_bytes = kBytes;
    segment.flops = 1e6;
    segment.inputs = {{layer == 0, 0, layer > 0, kBytes}};
    OutputShape out;
    out.name = layer + 1 == layers ? "loss" : "x";
    out.bytes = out.read_bytes = kBytes;
    segment.outputs = {out};
    block.segments = {segment};
    model.blocks.push_back(std::move(block));
  }
  return model;
}

inline MeshOptions options_of(const TimedPipeline& pipeline) {
  MeshOptions options;
  options.mesh.pipeline = pipeline.stages;
  options.batch = {1, pipeline.micro_batches, 1};
  options.schedule = pipeline.schedule;
  options.chunks = pipeline.chunks;
  return options;
}

class TimedStage {
 public:
  TimedStage(const TimedPipeline& pipeline, const MeshPlaces& places, const Program& program,
             Rendezvous& rendezvous, Clock& clock, const Cancel& cancel)
      : pipeline_(pipeline), places_(places), program_(program), clock_(clock), cancel_(cancel) {
    for (const Buffer& buffer : program.buffers) memory_.emplace_back(buffer.bytes);
    transport_ =
        make_transport({.kind = "tcp"}, Epoch{1, 1, 1}, rendezvous, clock, &cancel, deadline());
    channel_ = std::make_unique<Channel>(*transport_, clock, kVotes, kTimeout);
  }

  void run() {
    Executor executor(program_, handlers(), clock_, &cancel_, &trace_);
    for (int step = 0; step < pipeline_.steps; ++step) executor.run(step);
  }

  /// Adds what this stage did.
  void report(std::vector<TimedStep>& steps) const {
    for (const TraceRecord& record : trace_.records()) {
      TimedStep& step = steps.at(record.step);
      step.cells.resize(pipeline_.stages);
      const CellTime time{seconds(record.begin), seconds(record.end)};
      if (record.op == Op::kVote) {
        step.vote += time.end - time.begin;
        step.length = std::max(step.length, time.end);
      }
      if (record.op != Op::kForward && record.op != Op::kBackward) continue;
      const Cell cell = cell_of(program_.queues[record.queue].instructions[record.index]);
      auto& own = step.cells[program_.rank];
      if (own.empty() || own.back().cell != cell) own.push_back({cell, time});
      own.back().time.end = time.end;
    }
  }

 private:
  static constexpr Operations kVotes = channel_of(0);
  static constexpr Duration kTimeout = std::chrono::seconds(60);
  Deadline deadline() const { return clock_.after(kTimeout); }
  static double seconds(Time time) {
    return std::chrono::duration<double>(time.time_since_epoch()).count();
  }

  Cell cell_of(const Instruction& i) const {
    CellKind kind = CellKind::kForward;
    if (i.op == Op::kBackward) {
      kind = i.part == Part::kBoth    ? CellKind::kBackward
             : i.part == Part::kInput ? CellKind::kInput
                                      : CellKind::kWeight;
    }
    return {kind, places_.chunk_of_layer[i.block], i.micro};
  }

  Handlers handlers() {
    Handlers on;
    on.fill([](const Instruction&, uint64_t) {});
    auto set = [&on](Op op, Handler handler) { on[static_cast<int>(op)] = std::move(handler); };
    const auto pass = [this](const Instruction& i, uint64_t) {
      const bool twice = i.op == Op::kBackward && i.part == Part::kBoth;
      const Duration time = pipeline_.forward * (twice ? 2 : 1) / pipeline_.layers;
      if (time.count() > 0) clock_.sleep(time, &cancel_);
    };
    set(Op::kForward, pass);
    set(Op::kBackward, pass);
    set(Op::kSend, [this](const Instruction& i, uint64_t step) {
      named(to_string(i), step, [&] {
        Posted posted(*transport_);
        posted.send(i.peer, {i.id, 0, step},
                    std::span(memory_[buffer_of(i, OperandRole::kMessage)]).first(i.bytes));
        posted.wait_all(deadline());
      });
    });
    set(Op::kRecv, [this](const Instruction& i, uint64_t step) {
      named(to_string(i), step, [&] {
        Posted posted(*transport_);
        posted.recv(i.peer, {i.id, 0, step},
                    std::span(memory_[buffer_of(i, OperandRole::kMessage)]).first(i.bytes));
        posted.wait_all(deadline());
      });
    });
    set(Op::kVote, [this](const Instruction&, uint64_t) { channel_->barrier(); });
    return on;
  }

  const TimedPipeline& pipeline_;
  const MeshPlaces& places_;
  const Program& program_;
  Clock& clock_;
  const Cancel& cancel_;
  std::vector<std::vector<std::byte>> memory_;  // by buffer
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Channel> channel_;
  Trace trace_;
};

/// Runs all stages to the end. The first stage's failure ends all, and is thrown.
inline std::vector<TimedStep> run_timed(const TimedPipeline& pipeline) {
  const MeshOptions options = options_of(pipeline);
  const int chunks = pipeline.stages * chunks_of(pipeline.schedule, pipeline.chunks);
  const ModelShape model = timed_model(chunks * pipeline.layers);
  const MeshPlaces places = mesh_places(model, options);
  const Plan plan = plan_mesh(model, options);
  SystemClock clock(Duration{0});
  Cancel cancel;
  ThreadRendezvous rendezvous(pipeline.stages, clock, &cancel);
  std::vector<std::unique_ptr<TimedStage>> stages(pipeline.stages);
  std::vector<std::exception_ptr> failures(pipeline.stages);
  std::vector<std::thread> threads;
  for (int s = 0; s < pipeline.stages; ++s) {
    threads.emplace_back([&, s] {
      try {
        const auto view = rendezvous.view(s);
        stages[s] =
            std::make_unique<TimedStage>(pipeline, places, plan.programs[s], *view, clock, cancel);
        stages[s]->run();
      } catch (const std::exception& error) {
        failures[s] = std::current_exception();
        cancel.cancel(fmt::format("stage {} failed: {}", s, error.what()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  std::vector<TimedStep> steps(pipeline.steps);
  for (const auto& stage : stages) stage->report(steps);
  for (TimedStep& step : steps) {
    double first = step.cells[0][0].time.begin;
    for (const auto& own : step.cells) first = std::min(first, own.front().time.begin);
    step.length -= first;
  }
  return steps;
}

}  // namespace tutti::test
