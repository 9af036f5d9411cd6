// Ownership is what the rest of the proof, checkpoints and the hash of the state go by, so it has
// to be complete before anything else is looked at.
#include "plan/check/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace tutti {

namespace {

class RankCheck {
 public:
  RankCheck(const Plan& plan, const ModelShape& model) : plan_(plan), model_(model) {}

  std::vector<std::string> check() {
    // Lists of the right length first: everything else looks things up by rank and unit.
    const size_t ranks = static_cast<size_t>(plan_.mesh.ranks());
    if (plan_.programs.size() != ranks || plan_.ranks != plan_.mesh.ranks() ||
        plan_.places.size() != ranks)
      return {fmt::format("{} programs for {} ranks", plan_.programs.size(), ranks)};
    if (plan_.homes.size() != model_.blocks.size() ||
        plan_.ownership.size() != model_.blocks.size())
      return {fmt::format("{} units have owners, the model has {}", plan_.ownership.size(),
                          model_.blocks.size())};

    check_places();
    if (!faults_.empty()) return std::move(faults_);
    for (int unit = 0; unit < static_cast<int>(model_.blocks.size()); ++unit) check_unit(unit);
    for (size_t p = 0; p < plan_.parcels.size(); ++p) check_parcel(p);
    return std::move(faults_);
  }

 private:
  /// Ranks are where the mesh has them; every lane is dealt to one data rank; every block has a
  /// home that has its column.
  void check_places() {
    const Mesh& mesh = plan_.mesh;

    // How often each lane is dealt out, and the column that is due next.
    std::vector<int> times(static_cast<size_t>(std::max(plan_.batch.lanes, 0)), 0);
    int64_t column = 0;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const RankPlace& place = plan_.places[rank];
      if (!(place.at == mesh.at(rank)))
        faults_.push_back(fmt::format("rank {} does not stand there", rank));

      // Ranks of one data coordinate go through the same lanes, those of one tensor coordinate have
      // the same columns. The first of each stands for them when lanes and columns are counted.
      const RankPlace &data = plan_.places[mesh.rank({mesh.at(rank).data, 0, 0})],
                      &tensor = plan_.places[mesh.rank({0, mesh.at(rank).tensor, 0})];
      if (place.lanes != data.lanes || place.columns != tensor.columns)
        faults_.push_back(
            fmt::format("rank {} has other lanes or columns than its neighbours", rank));

      if (&place == &data)
        for (int lane : place.lanes)
          if (lane >= 0 && lane < plan_.batch.lanes) ++times[lane];
      if (&place == &tensor) {
        if (place.columns.begin != column || place.columns.empty())
          faults_.push_back(fmt::format("the columns of rank {} do not follow those before", rank));
        column = place.columns.end;
      }
    }

    if (column != model_.columns ||
        std::any_of(times.begin(), times.end(), [](int n) { return n != 1; }))
      faults_.push_back("some lane or column has no rank, or two");

    // A home is a coordinate of no data rank in particular: 0 by convention.
    for (size_t b = 0; b < plan_.homes.size(); ++b) {
      const Coordinates& home = plan_.homes[b];
      const bool there = home.data == 0 && home.tensor >= 0 && home.tensor < mesh.tensor &&
                         home.pipeline >= 0 && home.pipeline < mesh.pipeline;
      if (!there || !plan_.places[mesh.rank(home)].columns.contains(model_.blocks[b].column))
        faults_.push_back(fmt::format("block {} has no home", b));
    }
  }

  /// Every float of a unit has a rank of its home that sums, holds and updates it; a rank's buffers
  /// of parameters and moments hold what it owns.
  void check_unit(int u) {
    const Ownership& unit = plan_.ownership[u];
    for (const auto* owners : {&unit.sums, &unit.parameters, &unit.moments}) {
      if (!cover(*owners, u))
        faults_.push_back(fmt::format("unit {} has floats without an owner, or with two", u));
    }
    if (!faults_.empty() || model_.blocks[u].gradient_size == 0) return;

    // One buffer of parameters and one of moments per rank of the home; copies (which have
    // `placed`) are not counted.
    for (int rank = 0; rank < plan_.mesh.ranks(); ++rank) {
      if (!is_home(plan_, rank, u)) continue;
      int parameters = 0, moments = 0;
      for (const Buffer& b : plan_.programs[rank].buffers) {
        if (b.unit != u || !b.placed.empty()) continue;
        const Range kept = range_of(unit.moments, rank), held = range_of(unit.parameters, rank);
        const Range there = placed_in(b, model_.blocks[u].unit_size).front().range;
        const bool own = b.kind == BufferKind::kParameter ? same(there, held)
                                                          : b.range.empty() || b.range == kept;
        if (b.kind == BufferKind::kParameter) ++parameters;
        if (b.kind == BufferKind::kMoment) ++moments;
        if ((b.kind == BufferKind::kParameter || b.kind == BufferKind::kMoment) && !own)
          faults_.push_back(fmt::format("rank {}: '{}' does not hold what the rank owns of unit {}",
                                        rank, b.name, u));
      }
      if (parameters != 1 || moments != (plan_.training ? 1 : 0))
        faults_.push_back(
            fmt::format("rank {}: unit {} has {} buffers of parameters, {} of moments", rank, u,
                        parameters, moments));
    }
  }
  static bool same(Range a, Range b) { return a == b || (a.empty() && b.empty()); }

  /// Whether ranges cover a unit without overlap and without gaps, with all ranks of its
  /// home as owners.
  bool cover(const std::vector<Owned>& owners, int unit) const {
    std::vector<Range> ranges;
    std::vector<int> ranks;
    for (const Owned& owned : owners) {
      ranges.push_back(owned.range);
      ranks.insert(ranks.end(), owned.ranks.begin(), owned.ranks.end());
      if (owned.ranks.empty() || !std::is_sorted(owned.ranks.begin(), owned.ranks.end()))
        return false;
    }

    // Each rank of the home is an owner, once; with slices, some may own nothing.
    std::sort(ranks.begin(), ranks.end());
    std::vector<int> home;
    for (int rank = 0; rank < plan_.mesh.ranks(); ++rank)
      if (is_home(plan_, rank, unit)) home.push_back(rank);
    if (ranks != home) return false;

    // Empty ranges may be anywhere; the others follow one another.
    std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
    int64_t next = 0;
    for (Range range : ranges) {
      if (range.begin > range.end || (!range.empty() && range.begin != next)) return false;
      if (!range.empty()) next = range.end;
    }
    return next == model_.blocks[unit].unit_size;
  }

  /// A parcel is whole units, each once.
  void check_parcel(size_t number) {
    std::vector<int> units;
    bool sound = !plan_.parcels[number].empty();
    for (const auto& [unit, range] : plan_.parcels[number]) {
      sound = sound && unit >= 0 && unit < static_cast<int>(model_.blocks.size()) &&
              range == Range{0, model_.blocks[unit].unit_size} &&
              std::find(units.begin(), units.end(), unit) == units.end();
      units.push_back(unit);
    }
    if (!sound) faults_.push_back(fmt::format("parcel {} is not a list of whole units", number));
  }

  const Plan& plan_;
  const ModelShape& model_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> check_ranks(const Plan& plan, const ModelShape& model) {
  return RankCheck(plan, model).check();
}

}  // namespace tutti
