// The parts that a job names: models, losses, formats of data, optimizers, schedules, pipeline
// schedules, metrics and transports. A part is a row here, which says what the checks of a job must
// know of it, and a row in the table of the folder that implements it. Parts are looked up by name,
// and nobody compares the names: whoever needs to know more of a part asks a property.
// docs/architecture.md lists the files to touch for each.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/enums.h"

namespace tutti {

/// In what form records reach a model. A format may give several; a model takes one.
struct Forms {
  bool tokens = false;    ///< sequences of them
  bool features = false;  ///< flat vectors of numbers
  bool images = false;    ///< [channels, height, width]
  bool fields = false;    ///< numbers and categories apart
  bool meet(const Forms& other) const {
    return (tokens && other.tokens) || (features && other.features) || (images && other.images) ||
           (fields && other.fields);
  }
};

/// Which losses go with a model.
enum class LossNeed { kAny, kClasses, kValues, kReconstruction };

struct ModelPart {
  std::string_view name, help;
  /// The forms it reads: images where the data can give them, else another.
  Forms reads{};
  std::vector<NormKind> norms{};  ///< that it takes; the first is what auto means. Empty: any
  LossNeed losses = LossNeed::kAny;
  std::string_view automatic_loss{};  ///< "": what suits the target
  bool sequences = false;             ///< of tokens, each with a target: its classes are the tokens
  bool reconstructs = false;          ///< its input is its target
  bool columns = false;               ///< it can be defined in columns
  bool foreign = false;               ///< a program's own: nothing else is known of it
  bool tied = false;                  ///< its head can use its embedding
  bool gated = false;                 ///< it has gated layers
  /// The block with which a pipeline's second stage may always begin; "": its blocks have names of
  /// their own.
  std::string_view second_stage{};
};

struct LossPart {
  std::string_view name, help;
  bool classes = false;       ///< targets are classes; else values
  bool reconstructs = false;  ///< goes with a model whose input is its target
  bool yes_or_no = false;     ///< of probabilities: two classes are 0 and 1
  bool taught = false;        ///< by the run in loss.teacher
  bool delta = false;         ///< reads loss.delta
  /// Classes alone: what `auto` means for them, and what kernels of a gpt compute.
  bool plain = false;
};

/// The fields of a generated record: so many numbers, and categories of so many values each.
struct GeneratedFields {
  int64_t numbers = 0, categories = 0, values = 0;
};

/// What generated clicks have (data/tables/generated.cc).
inline constexpr GeneratedFields kClickFields{.numbers = 8, .categories = 6, .values = 16};

struct DataPart {
  std::string_view name, help;
  Forms gives{};
  bool generated = false;     ///< there is no file, and no end
  GeneratedFields fields{};   ///< of generated records that are fields
  bool table = false;         ///< has data.columns
  bool text = false;          ///< goes through data.tokenizer
  bool decoded = false;       ///< pictures of files: grey or in colour
  bool only_classes = false;  ///< targets are never values
  bool unreadable = false;    ///< tokens of nobody knows what text
  /// What a model of it can be compared with; kBigram: as long as its tokens are bytes.
  BaselineKind baseline = BaselineKind::kNone;
};

struct OptimizerPart {
  std::string_view name, help;
  // It reads the key of [train] with this name.
  bool beta1 = false, beta2 = false, momentum = false, nesterov = false;
  bool decoupled = false;  ///< weight decay acts on the parameter, not by the gradient
  bool sliced = true;      ///< a slice is updated by itself: all but those that need whole norms
  bool gpu = false;        ///< GPUs have a kernel of it
};

struct SchedulePart {
  std::string_view name, help;
  // It reads the key of [train] with this name.
  bool final_lr = false, factor = false, every = false, power = false, cycle = false;
  bool watches = false;  ///< goes by evaluations
};

/// Pipeline schedules: the order of a stage's cells (plan/make/pipeline_schedule.h).
struct PipelinePart {
  std::string_view name, help;
  int chunks = 1;        ///< parts of the model that a stage has; 0: layout.chunks says it
  bool splits = false;   ///< backward is two cells, so that it can be made to measure
  bool returns = false;  ///< chunks go down the stages and up again: the last is on the first stage
};

struct MetricPart {
  std::string_view name, help;
  bool larger_is_better = true;
  bool headline = false;  ///< among the few that the line of an evaluation shows
};

struct TransportPart {
  std::string_view name, help;
  bool windows = true;    ///< ranks of a host read each other's memory
  bool processes = true;  ///< between processes
  bool threads = true;    ///< between threads of one
  bool gpu = false;       ///< carries GPUs' memory, and no other
  bool listens = false;   ///< on layout.port + rank
};

/// All rows of a kind, in the order in which docs and messages list them. The first optimizer,
/// schedule or format is nobody's default; the first pipeline schedule is the plain one.
template <class Part>
std::span<const Part> parts();
template <>
std::span<const ModelPart> parts<ModelPart>();
template <>
std::span<const LossPart> parts<LossPart>();
template <>
std::span<const DataPart> parts<DataPart>();
template <>
std::span<const OptimizerPart> parts<OptimizerPart>();
template <>
std::span<const SchedulePart> parts<SchedulePart>();
template <>
std::span<const PipelinePart> parts<PipelinePart>();
template <>
std::span<const MetricPart> parts<MetricPart>();
template <>
std::span<const TransportPart> parts<TransportPart>();

/// A row without properties for a name that is none: the schema has refused that already.
template <class Part>
const Part& part_named(std::string_view name) {
  static const Part none{};
  for (const Part& part : parts<Part>())
    if (part.name == name) return part;
  return none;
}

/// The names of those parts for which `fits`, a property or a function, holds.
template <class Part, class Fits>
std::vector<std::string> names_where(const Fits& fits) {
  std::vector<std::string> names;
  for (const Part& part : parts<Part>())
    if (std::invoke(fits, part)) names.emplace_back(part.name);
  return names;
}
/// The first of them, which is the one that `auto` means; "" if there is none.
template <class Part, class Fits>
std::string_view first_where(const Fits& fits) {
  for (const Part& part : parts<Part>())
    if (fits(part)) return part.name;
  return {};
}
/// The names in a table of a folder that implements parts.
template <class Rows>
std::vector<std::string> row_names(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}
/// "a", "b" and "c", where `last` is "and": for messages that say which parts have something.
std::string quoted_list(const std::vector<std::string>& names, std::string_view last);
template <class Part>
std::vector<std::string> names_of() {
  return names_where<Part>([](const Part&) { return true; });
}

/// Whether a name is still open: "auto", or nothing in a job that a program made.
inline bool is_open(std::string_view name) { return name.empty() || name == "auto"; }

struct Job;
const ModelPart& model_part(const Job& job);
const LossPart& loss_part(const Job& job);
const DataPart& data_part(const Job& job);
/// What the job's data offers to compare a model with.
BaselineKind baseline_offered(const Job& job);
/// Whether a transport connects such ranks in the host's memory.
bool connects(const TransportPart& transport, Workers workers);
/// What `auto` is: of those that carry GPUs' memory, or that connect such workers, the first.
std::string_view automatic_transport(bool gpu, Workers workers);
/// Whether the model reads its records as images: those that can are not flattened.
bool reads_images(const Job& job);
/// Whether the job goes by its evaluations: its schedule, early stopping or the best checkpoint.
bool goes_by_evaluations(const Job& job);

}  // namespace tutti
