// First values of parameters. Element i of a parameter is a pure function of (seed, full name, i): no layout, cut or
// order of filling can change it.
#include <cmath>

#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"
#include "model/init.h"
#include "model/segment.h"

namespace tutti {

namespace {

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

// Draws again, from the stream of the next attempt, until the value lies within two standard deviations: one time
// in 22.
double truncated_normal(PhiloxKey key, uint64_t i) {
  for (key.b = 0;; ++key.b)
    if (const double x = philox_normal(key, i); std::abs(x) <= 2) return x;
}

template <typename F>
void fill(std::span<float> values, int64_t first, F&& value) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(value(static_cast<uint64_t>(first) + i));
}

}  // namespace

void initialise_range(const Parameter& parameter, const std::string& name, uint64_t seed, int64_t first,
                      std::span<float> values) {
  const PhiloxKey key{seed, Purpose::kInit, hash64(name), 0};
  const Fans fans = fans_of(parameter.dims);
  const double scale = parameter.init.scale;
  const auto normal = [&](double deviation) {
    fill(values, first, [&](uint64_t i) { return deviation * philox_normal(key, i); });
  };
  const auto uniform = [&](double bound) {
    fill(values, first, [&](uint64_t i) { return bound * (2.0 * philox_uniform(key, i) - 1.0); });
  };
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
      throw Error("orthogonal");
    case Init::Kind::kGiven:
      return fill(values, first, [&](uint64_t i) { return (*parameter.init.values)[i]; });
  }
  TUTTI_CHECK(false, "unknown init of {}", name);
}

Init init_of(const ModelConfig& config) {
  using Kind = Init::Kind;
  const std::string& name = config.init;
  if (name == "normal") return {Kind::kNormal, config.init_scale, {}};
  if (name == "truncated-normal") return {Kind::kTruncatedNormal, config.init_scale, {}};
  if (name == "glorot-uniform") return {Kind::kGlorotUniform, 1, {}};
  if (name == "glorot-normal") return {Kind::kGlorotNormal, 1, {}};
  if (name == "he-uniform") return {Kind::kHeUniform, 1, {}};
  if (name == "he-normal") return {Kind::kHeNormal, 1, {}};
  if (name == "orthogonal") return {Kind::kOrthogonal, 1, {}};
  if (name == "zeros") return {Kind::kZeros, 1, {}};
  if (name == "ones") return {Kind::kOnes, 1, {}};
  TUTTI_CHECK(name == "constant", "model.init is \"{}\", which is not known", name);
  return {Kind::kConstant, config.init_scale, {}};
}

void initialise(const Parameter& parameter, const std::string& name, uint64_t seed, std::span<float> values) {
  initialise_range(parameter, name, seed, 0, values);
}

}  // namespace tutti
