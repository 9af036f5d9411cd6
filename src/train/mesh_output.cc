#include "train/mesh_output.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include "comm/posted.h"
#include "plan/mesh_ids.h"
#include "train/channels.h"

namespace tutti {

namespace {

constexpr uint32_t kOutputId = kVoteId - 1;  // below the instructions that meet

std::span<std::byte> bytes_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.data_ptr()), static_cast<size_t>(t.nbytes())};
}

}  // namespace

void OutputParts::add(int column, const at::Tensor& part) {
  if (part.defined()) parts_[column] = part;
}

at::Tensor OutputParts::whole() {
  if (!p_.model.output_sliced) return parts_.contains(0) ? parts_.at(0) : at::Tensor();
  bring();
  if (place_.at().tensor != 0) return {};
  std::vector<at::Tensor> all;
  for (const auto& [column, part] : parts_) all.push_back(part);
  return at::cat(all, -1);
}

/// All tensor ranks' parts to the first of them.
void OutputParts::bring() {
  const uint64_t turn = turns_++;
  const Mesh& mesh = p_.options.mesh;
  const Coordinates& at = place_.at();
  named("output of an evaluation", turn, [&] {
    Posted posted(p_.transport);
    for (int t = 1; t < mesh.tensor; ++t)
      for (int64_t c = place_.places().columns[t].begin; c < place_.places().columns[t].end; ++c) {
        const int column = static_cast<int>(c);
        const Tag tag{kOutputId, static_cast<uint32_t>(column), turn};
        if (at.tensor == t) posted.send(mesh.rank({at.data, 0, at.pipeline}), tag, bytes_of(parts_.at(column)));
        if (at.tensor != 0) continue;
        parts_[column] = at::empty_like(parts_.at(0));
        posted.recv(mesh.rank({at.data, t, at.pipeline}), tag, bytes_of(parts_.at(column)));
      }
    posted.wait_all(p_.context.clock.after(timeout_of(p_.job)));
  });
}

}  // namespace tutti
