// Draws a step as SVG: a row per queue, a bar per stretch of work. Neighbouring instructions of one
// micro-batch and kind are drawn as one bar: a stage's forward, not its segments.
#include "plan/search/timeline_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/text/seconds.h"
#include "base/text/svg.h"

namespace tutti {

using namespace svg;

namespace {

// Pixels. kLeft has the names of ranks and queues; compute has rows of kRow, other queues of kThin.
constexpr double kWidth = 1200, kLeft = 168, kRight = 28, kTop = 92;
constexpr double kRow = 24, kThin = 8, kGap = 2, kRankGap = 9;
constexpr double kPlot = kWidth - kLeft - kRight;

/// What a bar shows, in the order of the legend. Compute is blue and green; what travels has
/// warm colours.
struct Kind {
  const char *name, *fill, *ink;
};
constexpr Kind kKinds[] = {{"Load", "#a9b4c0", kInk},
                           {"Forward", "#5b8def", "#ffffff"},
                           {"Recompute", "#a9c4f7", kInk},
                           {"Backward", "#2f5fb3", "#ffffff"},
                           {"Input part", "#2f5fb3", "#ffffff"},
                           {"Weight part", "#2a9d8f", "#ffffff"},
                           {"Fold", "#49b6a6", kInk},
                           {"Norm", "#c58fd6", kInk},
                           {"Update", "#5aa846", "#ffffff"},
                           {"Reduce", "#f2994a", kInk},
                           {"Gather", "#f2c94c", kInk},
                           {"Exchange", "#e07a5f", kInk},
                           {"Send", "#d9a441", kInk},
                           {"Vote", "#eb5757", "#ffffff"},
                           {"Disk", "#8d7b68", "#ffffff"}};
// Places in kKinds.
enum : size_t {
  kLoad,
  kForward,
  kRecompute,
  kBackward,
  kInput,
  kWeight,
  kFold,
  kNorm,
  kUpdate,
  kReduce,
  kGather,
  kExchange,
  kSend,
  kVote,
  kDisk
};

size_t kind_of(const Instruction& i) {
  switch (i.op) {
    // Compute has a kind for whatever a schedule may move on its own: a forward that is computed
    // again, and each of the two parts of a backward.
    case Op::kLoad:
      return kLoad;
    case Op::kForward:
      return i.again ? kRecompute : kForward;
    case Op::kBackward:
      return i.part == Part::kInput ? kInput : i.part == Part::kWeight ? kWeight : kBackward;
    case Op::kFold:
      return kFold;
    case Op::kNorm:
      return kNorm;
    case Op::kUpdate:
      return kUpdate;

    // A bar's title names its instruction, so both ends of a message may look alike, and so may
    // both ways of the second tier.
    case Op::kReduce:
      return kReduce;
    case Op::kGather:
      return kGather;
    case Op::kExchange:
      return kExchange;
    case Op::kSend:
    case Op::kRecv:
      return kSend;
    case Op::kFetch:
    case Op::kEvict:
      return kDisk;

    // Waits for borrowed memory count with the vote: in all of these a rank waits for the others.
    case Op::kVote:
    case Op::kAcquire:
    case Op::kRelease:
      return kVote;
  }
  return kLoad;
}

struct Bar {
  double begin = 0, end = 0;
  size_t kind = 0;
  int lane = -1, micro = -1;
  int first = 0, last = 0;  // instructions of the queue
};

/// The bars of a queue. Gaps below `smallest` seconds would not be seen and do not part them.
std::vector<Bar> bars_of(const Queue& queue, const std::vector<InstructionTime>& times,
                         double smallest) {
  std::vector<Bar> bars;
  for (size_t i = 0; i < queue.instructions.size(); ++i) {
    const Instruction& instruction = queue.instructions[i];
    const Bar bar{times[i].begin,    times[i].end,        kind_of(instruction), instruction.lane,
                  instruction.micro, static_cast<int>(i), static_cast<int>(i)};
    if (bar.end <= bar.begin) continue;

    Bar* before = bars.empty() ? nullptr : &bars.back();
    if (before != nullptr && before->kind == bar.kind && before->lane == bar.lane &&
        before->micro == bar.micro && bar.begin - before->end < smallest) {
      before->end = bar.end;
      before->last = bar.last;
    } else {
      bars.push_back(bar);
    }
  }
  return bars;
}

using MicroBatch = std::pair<int, int>;  // (lane, micro)

/// The micro-batches of a rank in the order in which it first meets them: the numbers on the bars.
std::vector<MicroBatch> sequence_of(const Program& program) {
  std::vector<MicroBatch> sequence;
  for (const Instruction& i : program.queues[0].instructions)
    if (i.op == Op::kForward &&
        std::find(sequence.begin(), sequence.end(), MicroBatch(i.lane, i.micro)) == sequence.end())
      sequence.emplace_back(i.lane, i.micro);
  return sequence;
}

/// What has been drawn so far, from top to bottom. Grounds are to be drawn first, then bars, then
/// labels: what is drawn later is on top.
struct Drawn {
  std::string grounds, bars, labels;
  std::set<size_t> used;  // kinds of bars
  double y = kTop;        // where the next row begins
};

/// A bar has at least half a pixel, so that no instruction vanishes; wide ones leave a seam to the
/// next. Its title, which browsers show on hovering, names the instruction.
void draw_bar(const Bar& bar, const Queue& queue, bool compute, double scale,
              const std::vector<MicroBatch>& sequence, Drawn& drawn) {
  drawn.used.insert(bar.kind);
  const double x = kLeft + bar.begin * scale, width = std::max((bar.end - bar.begin) * scale, 0.5);
  const double seen = width > 3 ? width - 0.6 : width;
  const Instruction& first = queue.instructions[static_cast<size_t>(bar.first)];
  drawn.bars += fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\"{} "
      "fill=\"{}\"><title>{}{}, "
      "{}</title></rect>\n",
      x, drawn.y, seen, compute ? kRow : kThin, compute && width > 6 ? " rx=\"2\"" : "",
      kKinds[bar.kind].fill, escaped(to_string(first)),
      bar.last > bar.first ? fmt::format(" and {} more", bar.last - bar.first) : "",
      seconds_text(bar.end - bar.begin));

  // Bars of compute carry the number of their micro-batch where it fits.
  const auto number = std::find(sequence.begin(), sequence.end(), MicroBatch(bar.lane, bar.micro));
  if (!compute || number == sequence.end() || bar.kind == kLoad) return;
  const std::string text = std::to_string(number - sequence.begin());
  if (width > 6.5 * static_cast<double>(text.size()) + 5)
    drawn.bars += text_at(x + seen / 2, drawn.y + kRow / 2 + 4, text, kKinds[bar.kind].ink,
                          " text-anchor=\"middle\" font-size=\"11\"");
}

/// A rank's rows: for each queue that does something its name, its ground and its bars.
void draw_rank(const Program& program, const RankSimulation& times, double scale, Drawn& drawn) {
  const std::vector<MicroBatch> sequence = sequence_of(program);
  drawn.labels += text_at(24, drawn.y + kRow / 2 + 4.5, fmt::format("rank {}", program.rank), kInk,
                          " font-weight=\"600\"");
  for (size_t q = 0; q < program.queues.size(); ++q) {
    const Queue& queue = program.queues[q];
    if (queue.instructions.empty()) continue;

    // Compute is what a reader looks at first, so its row is higher and its name larger.
    const bool compute = q == 0;
    const double height = compute ? kRow : kThin;
    drawn.labels += text_at(
        kLeft - 10, drawn.y + height / 2 + (compute ? 4.5 : 3), queue.name, kFaint,
        compute ? " text-anchor=\"end\" font-size=\"12\"" : " text-anchor=\"end\" font-size=\"9\"");
    drawn.grounds += fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" rx=\"2\" fill=\"#f3f5f7\"/>\n",
        kLeft, drawn.y, kPlot, height);
    for (const Bar& bar : bars_of(queue, times.queues[q], 0.4 / scale))
      draw_bar(bar, queue, compute, scale, sequence, drawn);
    drawn.y += height + kGap;
  }
}

/// Only the kinds that the picture has, in the order of kKinds.
std::vector<LegendEntry> entries_of(const std::set<size_t>& used) {
  std::vector<LegendEntry> entries;
  for (size_t kind : used) entries.push_back({kKinds[kind].name, kKinds[kind].fill});
  return entries;
}

}  // namespace

std::string timeline_svg(std::span<const Program> programs, const Simulation& simulation,
                         const std::string& title) {
  const double span = std::max(simulation.seconds, 1e-9), scale = kPlot / span;
  Drawn drawn;
  for (size_t r = 0; r < programs.size(); ++r) {
    if (r > 0) drawn.y += kRankGap;
    draw_rank(programs[r], simulation.ranks[r], scale, drawn);
  }

  // The numbers of the axis are in a unit that suits the step's length.
  const double bottom = drawn.y + 4;
  const double unit = span < 1e-3 ? 1e-6 : span < 1 ? 1e-3 : 1;
  const char* unit_name = unit == 1 ? "s" : unit == 1e-3 ? "ms" : "us";
  const TimeAxis axis = time_axis({kLeft, kTop, bottom, span, unit, scale});

  // What the picture says in sum, at the right of the title.
  const std::string right =
      fmt::format("{}, bubble {:.1f} %, exposed communication {:.1f} %", seconds_text(span),
                  100 * simulation.bubble_share(), 100 * simulation.exposed_share());
  const LegendStyle style{.indent = 17, .letter = 6.8, .gap = 18, .more = " font-size=\"12\""};
  return opening(kWidth, bottom + 34) +
         text_at(24, 32, title, kInk, " font-size=\"17\" font-weight=\"600\"") +
         text_at(kWidth - kRight, 32, right, kFaint, " font-size=\"13\" text-anchor=\"end\"") +
         legend(kLeft, entries_of(drawn.used), style) + drawn.grounds + axis.lines + drawn.bars +
         drawn.labels + axis.numbers +
         text_at(kLeft - 10, bottom + 18, unit_name, kFaint, " text-anchor=\"end\"") + "</svg>\n";
}

}  // namespace tutti
