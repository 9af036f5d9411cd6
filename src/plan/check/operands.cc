// The table below says which operands an op may have; whatever is not in it is a fault.
#include "plan/check/operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tutti {

namespace {

/// What an op may do with an operand of a role, and what else the operand has to say.
struct Known {
  Op op;
  OperandRole role;
  Access access;
  enum class Names { kBuffer, kUnit, kRange } names;  ///< each says what those before it say, too
};
constexpr auto kBuffer = Known::Names::kBuffer;
constexpr auto kUnit = Known::Names::kUnit;
constexpr auto kRange = Known::Names::kRange;

constexpr Known kKnown[] = {{Op::kLoad, OperandRole::kData, Access::kWrite, kBuffer},
                            {Op::kForward, OperandRole::kLoss, Access::kUpdate, kBuffer},
                            {Op::kReduce, OperandRole::kTerm, Access::kRead, kRange},
                            {Op::kReduce, OperandRole::kSum, Access::kUpdate, kUnit},
                            {Op::kNorm, OperandRole::kSum, Access::kRead, kRange},
                            {Op::kNorm, OperandRole::kSquares, Access::kUpdate, kBuffer},
                            {Op::kGather, OperandRole::kPart, Access::kRead, kRange},
                            // The access is an update if the part that the rank has itself
                            // is in place.
                            {Op::kGather, OperandRole::kWhole, Access::kUpdate, kRange},
                            {Op::kGather, OperandRole::kWhole, Access::kWrite, kRange},
                            {Op::kVote, OperandRole::kLoss, Access::kRead, kBuffer},
                            {Op::kVote, OperandRole::kSquares, Access::kRead, kBuffer},
                            {Op::kVote, OperandRole::kVerdict, Access::kWrite, kBuffer},
                            {Op::kUpdate, OperandRole::kVerdict, Access::kRead, kBuffer},
                            {Op::kUpdate, OperandRole::kGradient, Access::kRead, kRange},
                            {Op::kUpdate, OperandRole::kParameter, Access::kUpdate, kUnit},
                            {Op::kUpdate, OperandRole::kMoment, Access::kUpdate, kUnit},
                            {Op::kSend, OperandRole::kMessage, Access::kRead, kBuffer},
                            {Op::kRecv, OperandRole::kMessage, Access::kWrite, kBuffer},
                            {Op::kFetch, OperandRole::kStored, Access::kRead, kUnit},
                            {Op::kFetch, OperandRole::kResident, Access::kWrite, kUnit},
                            {Op::kEvict, OperandRole::kStored, Access::kWrite, kUnit},
                            {Op::kEvict, OperandRole::kResident, Access::kRead, kUnit},
                            {Op::kAcquire, OperandRole::kLent, Access::kWrite, kUnit}};

bool inside(int value, size_t size) { return value >= 0 && value < static_cast<int>(size); }

class OperandCheck {
 public:
  OperandCheck(const Plan& plan, const ModelShape& model, Place place)
      : plan_(plan), model_(model), place_(place), i_(at(plan, place)) {}

  /// What is wrong with an operand; empty: nothing.
  std::string fault(const Operand& operand) const {
    // Use, memory, meaning: each question makes sense only if the one before has an answer.
    const auto known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& k) {
      return k.op == i_.op && k.role == operand.role && k.access == operand.access;
    });
    if (known == std::end(kKnown))
      return fmt::format("has no such use for a {}", role_name(operand.role));
    if (std::string borrowed = fault_of_rank(operand); !borrowed.empty()) return borrowed;
    if (!may_be(operand, known->names))
      return fmt::format("says another unit or range of a {} than is there",
                         role_name(operand.role));
    return "";
  }

 private:
  /// Memory: a buffer of this rank or, for gradients that are borrowed, one in another rank's
  /// window.
  std::string fault_of_rank(const Operand& operand) const {
    if (operand.rank < -1 || operand.rank == place_.rank) return "borrows of nobody";
    const int rank = operand.rank < 0 ? place_.rank : operand.rank;
    if (!inside(rank, plan_.programs.size()) ||
        !inside(operand.buffer, plan_.programs[rank].buffers.size()))
      return operand.rank < 0 ? "touches a buffer that is not there"
                              : "borrows a buffer that is not there";
    if (operand.rank < 0) return "";
    if (operand.role != OperandRole::kGradient) return "borrows something else than gradients";
    const Buffer& buffer = plan_.programs[rank].buffers[operand.buffer];
    return buffer.window ? ""
                         : fmt::format("'{}' of rank {} is not in the window", buffer.name, rank);
  }

  /// Meaning: the unit is one that the instruction is about, and the range is one that
  /// the role allows.
  bool may_be(const Operand& operand, Known::Names names) const {
    if (names != kRange && operand.range != Range{}) return false;
    if (names == kBuffer) return operand.unit == -1;
    if (!inside(operand.unit, model_.blocks.size()) || !is_about(operand.unit)) return false;
    const int rank = operand.rank < 0 ? place_.rank : operand.rank;
    const Buffer& buffer = plan_.programs[rank].buffers[operand.buffer];
    if (buffer.unit >= 0 && buffer.unit != operand.unit) return false;

    // Sums, parts and wholes go by ownership: a rank counts and offers its slice, and
    // takes the unit.
    const Range all{0, model_.blocks[operand.unit].unit_size};
    const Range own = range_of(plan_.ownership[operand.unit].sums, place_.rank);
    switch (operand.role) {
      // A range of gradient space, where further users' gradients follow the unit's own.
      case OperandRole::kTerm: {
        const Range room{0, buffer.bytes / static_cast<int64_t>(sizeof(float))};
        const Range held = buffer.range.empty() ? room : buffer.range;
        return held.begin <= operand.range.begin && !operand.range.empty() &&
               operand.range.end <= held.end;
      }
      case OperandRole::kPart:
        return operand.range == Range{} || operand.range == own;
      case OperandRole::kWhole:
        return operand.range == Range{} || operand.range == all;
      default:
        return operand.range.begin >= 0 && operand.range.end <= all.end;
    }
  }

  /// Whether the instruction is about a unit: its block's, or one of its parcel.
  bool is_about(int unit) const {
    if (i_.parcel < 0) return i_.block == unit;
    if (!inside(i_.parcel, plan_.parcels.size())) return false;
    const Parcel& parcel = plan_.parcels[i_.parcel];
    return std::any_of(parcel.begin(), parcel.end(),
                       [&](const UnitRange& part) { return part.unit == unit; });
  }

  const Plan& plan_;
  const ModelShape& model_;
  const Place place_;
  const Instruction& i_;
};

}  // namespace

void check_operands(const Plan& plan, const ModelShape& model, Place place,
                    std::vector<std::string>& faults) {
  const OperandCheck check(plan, model, place);
  const std::vector<Operand>& operands = at(plan, place).operands;
  for (size_t k = 0; k < operands.size(); ++k) {
    // Operands are few, so the same one twice is looked for one by one.
    const bool again =
        std::find(operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(k),
                  operands[k]) != operands.begin() + static_cast<std::ptrdiff_t>(k);
    const std::string what = again ? "names an operand twice" : check.fault(operands[k]);
    if (!what.empty()) faults.push_back(name_of(plan, place) + ": " + what);
  }
}

}  // namespace tutti
