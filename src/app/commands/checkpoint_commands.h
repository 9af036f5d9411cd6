// What a user does with checkpoints beside training: `tutti inspect`, `tutti diff`, `tutti export`.
// A path is a checkpoint, or a run, which stands for its last one.
#pragma once

#include <string>

namespace tutti {

/// Prints the counters, the files, and of every tensor its shape, norms and hash. Everything is read
/// and compared with the manifest: Error for the first that differs.
int inspect_command(const std::string& path);

/// Compares two checkpoints, or two runs by the steps that both saved, and prints the first step,
/// tensor, slot and range that differ. 0 where nothing does, 1 where something does.
int diff_command(const std::string& a, const std::string& b);

/// Writes the parameters and buffers, checked, to one safetensors file.
int export_command(const std::string& path, const std::string& out);

}  // namespace tutti
