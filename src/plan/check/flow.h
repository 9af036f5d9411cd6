// Activations and their gradients, as symbols: whoever reads a buffer finds what the model says.
// Part of plan/check/values.h.
#pragma once

#include <string>
#include <vector>

#include "plan/check/ordering.h"
#include "plan/check/symbols.h"

namespace tutti {

/// Collects faults of a plan, with the instruction in which they are seen.
class PlaceFaults {
 public:
  PlaceFaults(const Plan& plan, std::vector<std::string>& list) : plan_(plan), list_(list) {}
  void add(Place place, const std::string& what) {
    list_.push_back(name_of(plan_, place) + ": " + what);
  }

 private:
  const Plan& plan_;
  std::vector<std::string>& list_;
};

/// What tensor every buffer of every rank holds. Called with instructions in an order
/// that respects everything.
class FlowValues {
 public:
  FlowValues(const Plan& plan, const ModelShape& model, PlaceFaults& faults);
  /// A value of another kind was written there.
  void forget(int rank, int b) { held_[rank][b] = {}; }
  void load(Place place);
  void forward(Place place);
  void backward(Place place);
  void exchange(const std::vector<Place>& places);
  void transfer(Place send, Place receive);

 private:
  const Buffer& buffer(Place place, int b) const { return plan_.programs[place.rank].buffers[b]; }
  /// Finds fault unless the buffer holds the symbol; nothing is wanted of buffer -1.
  void need(Place place, int b, Symbol wanted, const char* what);
  /// The buffer holds the symbol from here on; it must have room for it.
  void put(Place place, int b, const Symbol& made, const char* what);

  const Plan& plan_;
  const ModelShape& model_;
  const Symbols symbols_;
  PlaceFaults& faults_;
  std::vector<std::vector<Symbol>> held_;  // [rank][buffer]
};

}  // namespace tutti
