// `tutti generate RUN`: training samples from a trained autoencoder.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

/// Decodes `count` codes drawn from a standard normal, keyed by the seed, and writes them as a .npy
/// file of [count, inputs] float32, which data.kind = "numpy" reads. Throws Error for a run of
/// another model, or of an autoencoder that is not variational.
int generate_command(const std::string& run, int64_t count, uint64_t seed, const std::string& out);

}  // namespace tutti
