// The hosts file of `tutti plan --hosts FILE`: a line per host, "name [slots=N]", as MPI has it.
#pragma once

#include <string>
#include <vector>

namespace tutti {

/// The number of all slots of a hosts file; 0 if some host does not say how many it has. Throws as
/// parse_hosts does.
int host_slots(const std::string& text, const std::string& source);
/// The host of each of `ranks` ranks by the text of a hosts file: filled in order; hosts without
/// slots take equal parts of what those with slots leave. Throws ConfigError naming `source` and
/// the line.
std::vector<int> parse_hosts(const std::string& text, const std::string& source, int ranks);

}  // namespace tutti
