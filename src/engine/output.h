// What evaluation reads of a forward: Model::output, whose columns may be spread over
// several tensor ranks.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "device/group.h"
#include "engine/parts.h"
#include "engine/station.h"

namespace tutti {

/// A column's part on its way between the first tensor rank and the one that has it.
struct OutputMessage {
  int peer;  ///< tensor coordinate of the other rank
  int column;
  at::Tensor part;
};
/// Moves parts between ranks. Collective over the tensor ranks of the last stage.
using MoveOutput = std::function<void(const std::vector<OutputMessage>& sends,
                                      const std::vector<OutputMessage>& receives)>;
/// Over the transport: everything has arrived when it returns. Parts and station must outlive it.
MoveOutput move_by_transport(const EngineParts& parts, const Station& station);
/// On the stream, over the group of the tensor axis; null means that there is one tensor rank.
MoveOutput move_on_stream(DeviceGroup* columns, Stream stream);

class OutputParts {
 public:
  /// Model and station must outlive it.
  OutputParts(const Model& model, const Station& station, MoveOutput move)
      : model_(model), station_(station), move_(std::move(move)) {}

  /// To be called before a new forward.
  void clear() { parts_.clear(); }
  /// Adds the part of a column; an undefined one is left out.
  void add(int column, const at::Tensor& part);
  /// All of the output, on the first tensor rank alone where columns have parts of it; undefined
  /// elsewhere. Collective over the tensor ranks of the last stage.
  at::Tensor whole();

 private:
  void bring();

  const Model& model_;
  const Station& station_;
  const MoveOutput move_;
  std::map<int, at::Tensor> parts_;  // by column
};

}  // namespace tutti
