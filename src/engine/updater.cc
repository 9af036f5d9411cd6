// Groups are matched with names once, at the start: afterwards every parameter has a rule.
// Parameters with equal rules share one, because a device gets the list of rules with each step.
#include "engine/updater.h"

#include <algorithm>

#include "base/error.h"

namespace tutti {

Updater::Updater(const Job& job, const ModelShape& shape, CodePath path)
    : name_(job.train.optimizer), optimizer_(make_optimizer(job.train, path)) {
  std::vector<std::string> faults;
  const std::vector<ParameterGroup> groups = parse_groups(job.train.groups, faults);
  if (!faults.empty()) throw ConfigError(std::move(faults));

  // Every parameter gets the rule of the first group that fits its name. A group counts as used if
  // its pattern fits at all, even where an earlier one took the parameter.
  std::vector<bool> used(groups.size());
  for (const BlockShape& block : shape.blocks) {
    rules_.emplace_back();
    numbers_.emplace_back();
    for (const ParameterShape& parameter : block.parameters) {
      Rule rule{parameter.role, 1, job.train.weight_decay, false};
      for (size_t g = 0; g < groups.size(); ++g)
        used[g] = used[g] || fits(groups[g].pattern, parameter.name);
      if (const ParameterGroup* group = group_of(groups, parameter.name)) {
        rule.lr = group->lr;
        rule.weight_decay = group->weight_decay.value_or(job.train.weight_decay);
        rule.frozen = group->frozen;
      }
      rules_.back().push_back(rule);

      const auto found = std::find(distinct_.begin(), distinct_.end(), rule);
      numbers_.back().push_back(static_cast<int>(found - distinct_.begin()));
      if (found == distinct_.end()) distinct_.push_back(rule);
    }
  }

  // A group that fits nothing is probably a misspelt name, so it is refused, and the message names
  // a parameter that exists.
  for (size_t g = 0; g < groups.size(); ++g) {
    if (used[g]) continue;
    const auto first = std::find_if(shape.blocks.begin(), shape.blocks.end(),
                                    [](const auto& b) { return !b.parameters.empty(); });
    throw Error(fmt::format("train.groups: \"{}\" fits no parameter; {}", groups[g].pattern,
                            first == shape.blocks.end()
                                ? "the model has none"
                                : "the first is called " + first->parameters.front().name));
  }
}

bool Updater::counts(int unit, size_t parameter) const {
  const Rule& rule = rules_[unit][parameter];
  return rule.role == Role::kTrained && !rule.frozen;
}

UpdateKind Updater::kind() const {
  const std::optional<UpdateKind> kind = value_named<UpdateKind>(name_);
  TUTTI_CHECK(kind, "no kind of update is called {}", name_);
  return *kind;
}

std::vector<RuleScalars> Updater::rules(const StepScalars& scalars, int64_t proposals) const {
  std::vector<RuleScalars> all;
  for (const Rule& rule : distinct_) {
    // Each rule changes the scalars as update() does for its parameter.
    StepScalars own = scalars;
    own.lr *= rule.lr;
    own.weight_decay = rule.weight_decay;
    const UpdateScalars values = optimizer_->scalars(own);

    RuleScalars& row = all.emplace_back();
    row.role = rule.frozen                      ? RuleScalars::kFrozen
               : rule.role == Role::kMeanBuffer ? RuleScalars::kMeanBuffer
               : rule.role == Role::kSumBuffer  ? RuleScalars::kSumBuffer
                                                : RuleScalars::kTrained;

    row.plain = values.plain;
    row.moments = values.moments;
    row.momentum = values.momentum;
    row.proposals = static_cast<float>(proposals);
  }
  return all;
}

Norms Updater::measure(const UnitValues& units, int unit, size_t parameter,
                       std::span<const GradientPiece> pieces, StepScalars scalars) const {
  Norms norms;
  const Rule& rule = rules_[unit][parameter];
  if (rule.role != Role::kTrained || rule.frozen || !two_passes()) return norms;

  scalars.lr *= rule.lr;
  scalars.weight_decay = rule.weight_decay;
  for (const GradientPiece& piece : pieces) {
    const auto slots = units.slots(unit, piece.at);
    optimizer_->measure(units.parameters(unit, piece.at), piece.gradient, slots, piece.size,
                        scalars, norms);
  }
  return norms;
}

void Updater::update(const UnitValues& units, int unit, size_t parameter,
                     std::span<const GradientPiece> pieces, StepScalars scalars, int64_t proposals,
                     const Norms* norms) const {
  const Rule& rule = rules_[unit][parameter];
  if (rule.frozen) return;

  // The ratio is over the whole parameter, so it comes before any piece is changed. measure()
  // applies the rule's settings by itself.
  if (rule.role == Role::kTrained && two_passes())
    scalars.trust =
        trust_ratio(norms != nullptr ? *norms : measure(units, unit, parameter, pieces, scalars));

  scalars.lr *= rule.lr;
  scalars.weight_decay = rule.weight_decay;
  for (const GradientPiece& piece : pieces) {
    float* values = units.parameters(unit, piece.at);
    const auto many = static_cast<float>(proposals);

    // A buffer takes what the micro-batches have proposed: their mean replaces its value, or their
    // sum is added to it.
    switch (rule.role) {
      case Role::kTrained: {
        const auto slots = units.slots(unit, piece.at);
        optimizer_->update(values, piece.gradient, slots, piece.size, scalars);
        break;
      }
      case Role::kMeanBuffer:
        for (int64_t i = 0; i < piece.size; ++i) values[i] = piece.gradient[i] / many;
        break;
      case Role::kSumBuffer:
        for (int64_t i = 0; i < piece.size; ++i) values[i] += piece.gradient[i];
        break;
    }
  }
}

}  // namespace tutti
