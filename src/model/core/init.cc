// First values of parameters. Element i of a parameter is a pure function of (seed, full name, i),
// so no layout, cut or order of filling can change it. An orthogonal parameter depends on all of
// its elements and is computed whole for every range of it.
#include "model/core/init.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"
#include "model/core/segment.h"

namespace tutti {

namespace {

// Inputs and outputs per unit, which Glorot and He scale by.
struct Fans {
  double in = 1, out = 1;
};

Fans fans_of(const std::vector<int64_t>& dims) {
  if (dims.empty()) return {};
  if (dims.size() == 1) return {static_cast<double>(dims[0]), static_cast<double>(dims[0])};
  double field = 1;  // a convolution's kernel
  for (size_t i = 2; i < dims.size(); ++i) field *= static_cast<double>(dims[i]);
  return {static_cast<double>(dims[1]) * field, static_cast<double>(dims[0]) * field};
}

// Draws again, from the stream of the next attempt, until the value is within two standard
// deviations. One draw in 22 is outside.
double truncated_normal(PhiloxKey key, uint64_t i) {
  for (key.b = 0;; ++key.b)
    if (const double x = philox_normal(key, i); std::abs(x) <= 2) return x;
}

// A dot product with eight running sums in a fixed order: the compiler can vectorise it without
// changing the bits.
double dot(const double* a, const double* b, size_t size) {
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  const size_t whole = size / kSums * kSums;
  for (size_t i = 0; i < whole; i += kSums)
    for (size_t j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
  double sum = 0;
  for (size_t i = whole; i < size; ++i) sum += a[i] * b[i];
  for (double s : sums) sum += s;
  return sum;
}

// Gram-Schmidt over keyed normals. Each vector is orthogonalised twice, because once is not enough
// if a draw is close to the span of the vectors before it. The result is the Q of a QR
// decomposition whose R has a positive diagonal: so the signs are fixed, and the distribution is
// uniform over the orthogonal matrices. Element e of vector v is stored at [v * size + e].
std::vector<double> orthonormal(const PhiloxKey& key, size_t vectors, size_t size,
                                bool vectors_are_rows) {
  std::vector<double> all(vectors * size);
  for (size_t v = 0; v < vectors; ++v) {
    double* one = &all[v * size];
    for (size_t e = 0; e < size; ++e)
      one[e] = philox_normal(key, vectors_are_rows ? v * size + e : e * vectors + v);
    for (int round = 0; round < 2; ++round)
      for (size_t before = 0; before < v; ++before) {
        const double* other = &all[before * size];
        const double along = dot(one, other, size);
        for (size_t e = 0; e < size; ++e) one[e] -= along * other[e];
      }
    const double length = std::sqrt(dot(one, one, size));
    for (size_t e = 0; e < size; ++e) one[e] /= length;
  }
  return all;
}

template <typename F>
void fill(std::span<float> values, int64_t first, F&& value) {
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(value(static_cast<uint64_t>(first) + i));
}

/// Two draws come of one block, so they are taken together where the range has both.
void normals(std::span<float> values, int64_t first, const PhiloxKey& key, double deviation) {
  size_t i = 0;
  const auto at = [&] { return static_cast<uint64_t>(first) + i; };
  const auto one = [&] {
    values[i] = static_cast<float>(deviation * philox_normal(key, at()));
    ++i;
  };
  if (!values.empty() && at() % 2 != 0) one();
  while (i + 2 <= values.size())
    for (const double draw : philox_normal_pair(key, at() / 2))
      values[i++] = static_cast<float>(deviation * draw);
  if (i < values.size()) one();
}

size_t count(const std::vector<int64_t>& dims) {
  size_t size = 1;
  for (int64_t d : dims) size *= static_cast<size_t>(d);
  return size;
}

void orthogonal(const Parameter& parameter, const PhiloxKey& key, int64_t first,
                std::span<float> values) {
  // The shorter side's vectors can be orthonormal: the rows of a wide matrix, the columns of a
  // tall one.
  const size_t rows = parameter.dims.empty() ? 1 : static_cast<size_t>(parameter.dims[0]);
  const size_t columns = count(parameter.dims) / rows;
  const bool by_rows = rows < columns;
  const auto all = orthonormal(key, std::min(rows, columns), std::max(rows, columns), by_rows);
  fill(values, first, [&](uint64_t i) {
    return parameter.init.scale * all[by_rows ? i : i % columns * rows + i / columns];
  });
}

}  // namespace

void initialise_range(const Parameter& parameter, const std::string& name, uint64_t seed,
                      int64_t first, std::span<float> values) {
  const PhiloxKey key{seed, Purpose::kInit, hash64(name), 0};
  const Fans fans = fans_of(parameter.dims);
  const double scale = parameter.init.scale;
  const auto normal = [&](double deviation) { normals(values, first, key, deviation); };
  const auto uniform = [&](double bound) {
    fill(values, first, [&](uint64_t i) { return bound * (2.0 * philox_uniform(key, i) - 1.0); });
  };

  // sqrt(6 / n) bounds a uniform distribution that has the deviation sqrt(2 / n).
  switch (parameter.init.kind) {
    case Init::Kind::kZeros:
      return fill(values, first, [](uint64_t) { return 0.0; });
    case Init::Kind::kOnes:
      return fill(values, first, [](uint64_t) { return 1.0; });
    case Init::Kind::kConstant:
      return fill(values, first, [&](uint64_t) { return scale; });
    case Init::Kind::kNormal:
      return normal(scale);
    case Init::Kind::kTruncatedNormal:
      return fill(values, first, [&](uint64_t i) { return scale * truncated_normal(key, i); });
    case Init::Kind::kGlorotUniform:
      return uniform(scale * std::sqrt(6 / (fans.in + fans.out)));
    case Init::Kind::kGlorotNormal:
      return normal(scale * std::sqrt(2 / (fans.in + fans.out)));
    case Init::Kind::kHeUniform:
      return uniform(scale * std::sqrt(6 / fans.in));
    case Init::Kind::kHeNormal:
      return normal(scale * std::sqrt(2 / fans.in));
    case Init::Kind::kOrthogonal:
      return orthogonal(parameter, key, first, values);
    case Init::Kind::kGiven:
      TUTTI_CHECK(parameter.init.values && count(parameter.dims) == parameter.init.values->size(),
                  "{} is given {} values", name,
                  parameter.init.values ? parameter.init.values->size() : 0);
      return fill(values, first, [&](uint64_t i) { return (*parameter.init.values)[i]; });
  }
  TUTTI_CHECK(false, "unknown init of {}", name);
}

// The names are those that the configuration has checked.
Init init_of(const ModelConfig& config) {
  switch (config.init) {
    case InitKind::kNormal:
    case InitKind::kTruncatedNormal:
    case InitKind::kConstant:
      return {config.init, config.init_scale, {}};
    default:
      return {config.init, 1, {}};  // they scale by the layer's sizes, or not at all
  }
}

void initialise(const Parameter& parameter, const std::string& name, uint64_t seed,
                std::span<float> values) {
  initialise_range(parameter, name, seed, 0, values);
}

}  // namespace tutti
