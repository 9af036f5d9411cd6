// The columns of an output go to the first tensor rank one by one, a message each, and are joined
// there along the last dim.
#include "engine/output.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include "comm/posted.h"
#include "config/timeout.h"
#include "plan/ir/tags.h"

namespace tutti {

namespace {

std::span<std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.data_ptr()), static_cast<size_t>(t.nbytes())};
}

}  // namespace

MoveOutput move_by_transport(const EngineParts& parts, const Station& station) {
  return [&p = parts, &station, turns = uint64_t{0}](
             const std::vector<OutputMessage>& sends,
             const std::vector<OutputMessage>& receives) mutable {
    // All ranks count evaluations alike, so messages of one never match those of another.
    const uint64_t turn = turns++;
    const auto rank = [&](int tensor) { return station.rank_beside(tensor); };
    const auto tag = [&](int column) {
      return Tag{kOutputMessages.first, static_cast<uint32_t>(column), turn};
    };
    named("output of an evaluation", turn, [&] {
      Posted posted(p.transport);
      for (const OutputMessage& m : sends)
        posted.send(rank(m.peer), tag(m.column), bytes_of(m.part));
      for (const OutputMessage& m : receives)
        posted.recv(rank(m.peer), tag(m.column), bytes_of(m.part));
      posted.wait_all(p.context.while_working(timeout_of(p.training.job)));
    });
  };
}

MoveOutput move_on_stream(DeviceGroup* columns, Stream stream) {
  return [=](const std::vector<OutputMessage>& sends, const std::vector<OutputMessage>& receives) {
    if (columns == nullptr) return;
    std::vector<DeviceSend> out;
    std::vector<DeviceReceive> in;
    for (const OutputMessage& m : sends)
      out.push_back({m.peer, m.part.data_ptr(), m.part.nbytes()});
    for (const OutputMessage& m : receives)
      in.push_back({m.peer, m.part.data_ptr(), m.part.nbytes()});
    columns->exchange(stream, out, in);
  };
}

void OutputParts::add(int column, const at::Tensor& part) {
  if (part.defined()) parts_[column] = part;
}

at::Tensor OutputParts::whole() {
  // An output that is not sliced is made by column 0, where it is whole.
  if (!model_.output_sliced) return parts_.contains(0) ? parts_.at(0) : at::Tensor();
  bring();
  if (station_.at().tensor != 0) return {};

  std::vector<at::Tensor> all;
  for (const auto& [column, part] : parts_) all.push_back(part);
  return at::cat(all, -1);
}

/// Brings the parts of all tensor ranks to the first of them. All columns have parts of equal
/// shape.
void OutputParts::bring() {
  std::vector<OutputMessage> sends, receives;
  const int tensor = station_.at().tensor;
  for (int t = 1; t < station_.tensor_ranks(); ++t)
    for (int64_t c = station_.columns(t).begin; c < station_.columns(t).end; ++c) {
      const int column = static_cast<int>(c);
      if (tensor == 0)
        receives.push_back({t, column, parts_[column] = at::empty_like(parts_.at(0))});
      if (tensor == t) sends.push_back({0, column, parts_.at(column)});
    }
  move_(sends, receives);
}

}  // namespace tutti
