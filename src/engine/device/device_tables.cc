// Every rank lists the parameter chunks of all units, not only those it holds, so a chunk has the
// same place among the votes everywhere.
#include "engine/device/device_tables.h"

namespace tutti {

StateTables state_tables(const ModelShape& shape, const Updater& updater) {
  StateTables tables;
  tables.unit_chunks.push_back(0);

  // Places count up over all units, so those of a unit are next to each other.
  int32_t place = 0;
  for (size_t u = 0; u < shape.blocks.size(); ++u) {
    const int unit = static_cast<int>(u);
    UnitTable& table = tables.units.emplace_back();
    table.parameter_chunks.push_back(0);
    const auto& parameters = shape.blocks[u].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      // Chunks restart at every parameter, and only those of parameters that count in norms have a
      // place among the votes.
      const Range values{parameters[i].offset, parameters[i].offset + parameters[i].size};
      for (const Range& r : chunks_of({values})) {
        StateChunk chunk;
        chunk.at = r.begin;
        chunk.size = static_cast<int32_t>(r.size());
        chunk.rule = updater.rule_of(unit, i);
        chunk.parameter = static_cast<int32_t>(i);
        table.chunks.push_back(chunk);
        if (!updater.counts(unit, i)) continue;
        chunk.place = place++;
        table.counted.push_back(chunk);
      }
      table.parameter_chunks.push_back(static_cast<int64_t>(table.chunks.size()));
    }

    tables.unit_chunks.push_back(place);
  }
  return tables;
}

}  // namespace tutti
