// What evaluation reads of a forward: Model::output, whose columns may lie on several tensor ranks.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "device/group.h"
#include "engine/parts.h"
#include "engine/station.h"

namespace tutti {

/// A column's part between the first tensor rank and the one that has it.
struct OutputMessage {
  int peer;  ///< the other's tensor coordinate
  int column;
  at::Tensor part;
};
/// Collective over the tensor ranks of the last stage.
using MoveOutput = std::function<void(const std::vector<OutputMessage>& sends,
                                      const std::vector<OutputMessage>& receives)>;
/// Over the transport; all is there when it returns. Parts and station must outlive it.
MoveOutput move_by_transport(const EngineParts& parts, const Station& station);
/// On the stream, over the tensor axis's group; null: one tensor rank.
MoveOutput move_on_stream(DeviceGroup* columns, Stream stream);

class OutputParts {
 public:
  /// Model and station must outlive it.
  OutputParts(const Model& model, const Station& station, MoveOutput move)
      : model_(model), station_(station), move_(std::move(move)) {}

  /// For a new forward.
  void clear() { parts_.clear(); }
  /// A column's part; nothing where it is undefined.
  void add(int column, const at::Tensor& part);
  /// All of it, where columns have parts of it on the first tensor rank alone; undefined elsewhere.
  /// Collective over the tensor ranks of the last stage.
  at::Tensor whole();

 private:
  void bring();

  const Model& model_;
  const Station& station_;
  const MoveOutput move_;
  std::map<int, at::Tensor> parts_;  // by column
};

}  // namespace tutti
