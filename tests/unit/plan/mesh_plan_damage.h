// Small damage to what the plan of a mesh says for all ranks: to its transfers, owners, parcels,
// groups, homes and places.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "unit/plan/dice.h"

namespace tutti::test {

/// The dice must outlive it.
class PlanDamage {
 public:
  explicit PlanDamage(Dice& dice) : dice_(dice) {}

  /// In one place; empty when the drawn damage cannot be done there.
  std::string damage(Plan& plan) {
    return dice_.below(2) == 0 ? damage_transfer(plan) : damage_meaning(plan);
  }

 private:
  std::string damage_transfer(Plan& plan) {
    if (plan.sums.empty() && plan.copies.empty()) return "";
    const bool sum = plan.copies.empty() || (!plan.sums.empty() && dice_.below(2) == 0);
    const size_t at = dice_.below(sum ? plan.sums.size() : plan.copies.size());
    const std::string what =
        sum ? damage_sum(plan, plan.sums[at]) : damage_copies(plan, plan.copies[at]);
    return what.empty() ? "" : fmt::format("{} of {} {}", what, sum ? "sum" : "copies", at);
  }
  std::string damage_sum(const Plan& plan, SumTransfer& sum) {
    const int ranks = static_cast<int>(plan.programs.size());
    UnitSum& unit = dice_.pick(sum.units);
    SumSource& source = dice_.pick(unit.sources);
    switch (dice_.below(13)) {
      case 0:
        return dice_.retarget(dice_.pick(source.terms).rank, 0, ranks, "a term's rank");
      case 1:
        dice_.pick(source.terms).offset += 256 * (dice_.below(2) == 0 ? 1 : -1);
        return "move a term";
      case 2:
        std::swap(dice_.pick(source.terms), source.terms.front());
        return "swap terms";
      case 3:
        dice_.erase(source.terms, dice_.below(source.terms.size()));
        return "drop a term";
      case 4:
        return dice_.shift(dice_.pick(unit.slices), "a slice");
      case 5:
        return dice_.shift(source.to, "where a source adds");
      case 6:
        return damage_levels(sum);
      case 7:
        return dice_.retarget(unit.unit, 0, 8, "a unit");
      case 8:
        return dice_.retarget(dice_.below(2) == 0 ? sum.round : sum.rounds, 0, 3,
                              "the round, or their number,");
      case 9:
        return dice_.retarget(sum.levels, 0, 4, "the number of levels");
      case 10:
        return dice_.another(sum.returned, 2, "the way back");
      case 11:
        sum.by_hosts = !sum.by_hosts;
        return "by hosts or not";
      default:
        dice_.erase(sum.ranks, dice_.below(sum.ranks.size()));
        return "drop a rank";
    }
  }
  std::string damage_levels(SumTransfer& sum) {
    LevelSum& level = dice_.pick(sum.sums);
    switch (dice_.below(5)) {
      case 0:
        if (level.order.empty()) return "";
        std::swap(dice_.pick(level.order).first, level.order.back().second);
        return "another order of additions";
      case 1:
        if (level.order.empty()) return "";
        dice_.erase(level.order, dice_.below(level.order.size()));
        return "drop an addition";
      case 2:
        return dice_.retarget(dice_.pick(level.terms), -2, 6, "a term of an addition");
      case 3:
        std::swap(dice_.pick(level.terms), level.terms.front());
        return "swap terms of additions";
      default:
        return dice_.retarget(level.level, 0, 3, "a level");
    }
  }
  std::string damage_copies(const Plan& plan, CopyTransfer& transfer) {
    if (transfer.copies.empty()) return "";
    const int ranks = static_cast<int>(plan.programs.size());
    const size_t at = dice_.below(transfer.copies.size());
    CopyTransfer::Copy& copy = transfer.copies[at];
    const int64_t by = dice_.below(2) == 0 ? 256 : -256;
    switch (dice_.below(9)) {
      case 0:
        return dice_.retarget(copy.from, 0, ranks, "whom a copy is of");
      case 1:
        return dice_.retarget(copy.to, 0, ranks, "whom a copy is for");
      case 2:
        copy.offset += by;
        return "move what is copied";
      case 3:
        copy.at += by;
        return "move where a copy goes";
      case 4:
        copy.bytes += by;
        return "resize a copy";
      case 5:
        return dice_.retarget(copy.buffer, 0,
                              static_cast<int>(plan.programs[copy.to].buffers.size()),
                              "a copy's buffer");
      case 6:
        transfer.updated = !transfer.updated;
        return "updated or not";
      case 7:
        dice_.erase(transfer.copies, at);
        return "drop a copy";
      default:
        dice_.erase(transfer.ranks, dice_.below(transfer.ranks.size()));
        return "drop a rank";
    }
  }

  std::string damage_meaning(Plan& plan) {
    const int ranks = static_cast<int>(plan.programs.size());
    switch (dice_.below(7)) {
      case 0: {
        Ownership& unit = dice_.pick(plan.ownership);
        std::vector<Owned>& owners = dice_.below(3) == 0   ? unit.sums
                                     : dice_.below(2) == 0 ? unit.parameters
                                                           : unit.moments;
        if (owners.empty()) return "";
        Owned& owned = dice_.pick(owners);
        const uint64_t kind = dice_.below(4);
        if (kind == 0) return dice_.shift(owned.range, "what is owned");
        if (kind == 1) return dice_.retarget(dice_.pick(owned.ranks), 0, ranks, "an owner");
        if (kind == 2)
          return dice_.erase(owned.ranks, dice_.below(owned.ranks.size())), "drop an owner";
        std::swap(owned, owners.front());
        return "swap owners";
      }
      case 1: {
        const size_t at = dice_.below(plan.parcels.size());
        Parcel& parcel = plan.parcels[at];
        const uint64_t kind = dice_.below(4);
        if (kind == 0)
          return dice_.shift(dice_.pick(parcel).range,
                             fmt::format("what parcel {} has of a unit", at));
        if (kind == 1)
          return dice_.retarget(dice_.pick(parcel).unit, 0, 8,
                                fmt::format("a unit of parcel {}", at));
        if (kind == 2)
          return dice_.erase(parcel, dice_.below(parcel.size())),
                 fmt::format("drop a unit of parcel {}", at);
        std::swap(dice_.pick(parcel), parcel.front());
        return fmt::format("swap units of parcel {}", at);
      }
      case 2: {
        auto& group = dice_.pick(plan.groups);
        return dice_.retarget(dice_.pick(group), 0, ranks, "a member of a group");
      }
      case 3: {
        Coordinates& home = dice_.pick(plan.homes);
        return dice_.retarget(dice_.below(2) == 0 ? home.tensor : home.pipeline, 0, 2, "a home");
      }
      case 4: {
        RankPlace& place = dice_.pick(plan.places);
        const uint64_t kind = dice_.below(3);
        if (kind == 0) return dice_.retarget(place.at.data, 0, 4, "where a rank stands");
        if (kind == 1) return dice_.retarget(dice_.pick(place.lanes), 0, 8, "a lane of a rank");
        place.columns.end += dice_.below(2) == 0 ? 1 : -1;
        return "resize a rank's columns";
      }
      case 5:
        return dice_.below(2) == 0
                   ? dice_.retarget(plan.batch.lanes, 1, 8, "the lanes")
                   : dice_.retarget(plan.batch.micro_batches, 1, 3, "the micro-batches");
      default:
        if (plan.batch.micro_batches == 1) return "";
        plan.micro_order = !plan.micro_order;
        return "another order of the job's sum";
    }
  }

  Dice& dice_;
};

}  // namespace tutti::test
