#include "engine/gradients.h"

namespace tutti {

namespace {

// Bucket arrays start on pages, so that two ranks never write into one.
constexpr int64_t kPageFloats = 1024;

bool is_private(const Buffer& b) { return b.kind == BufferKind::kGradient && b.partial < 0; }

size_t private_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Buffer& b : program.buffers)
    if (is_private(b)) bytes += align_up(b.bytes, 256);
  return static_cast<size_t>(bytes);
}

}  // namespace

GradientPlaces gradient_places(const Plan& plan, const ModelShape& shape) {
  GradientPlaces places;
  places.bucket_of.assign(shape.blocks.size(), -1);
  places.offset_in_bucket.assign(shape.blocks.size(), 0);
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    places.bucket_start.push_back(places.partial_floats);
    places.partial_floats += align_up(bucket.partial_size, kPageFloats);
    for (size_t k = 0; k < bucket.units.size(); ++k) {
      places.bucket_of[bucket.units[k]] = static_cast<int>(b);
      places.offset_in_bucket[bucket.units[k]] = bucket.unit_offset[k];
    }
  }
  return places;
}

int64_t partials_of(int rank, const Plan& plan) {
  return static_cast<int64_t>(subtrees(lanes_of(rank, plan.ranks, plan.lanes), plan.lanes).size());
}

ReductionSpec reduction_spec(const Plan& plan, const ModelShape& shape, const GradientPlaces& places, int b,
                             const Job& job) {
  const Bucket& bucket = plan.buckets[b];
  ReductionSpec spec;
  spec.bucket = b;
  spec.lanes = plan.lanes;
  spec.partial_size = bucket.partial_size;
  spec.result_size = bucket.unit_offset.back() + shape.blocks[bucket.units.back()].unit_size;
  std::vector<Range> parameters;
  for (size_t k = 0; k < bucket.units.size(); ++k) {
    const int64_t base = bucket.unit_offset[k];
    for (const ParameterShape& p : shape.blocks[bucket.units[k]].parameters) {
      Piece piece{base + p.offset, p.size, {base + p.offset}};
      for (int64_t extra : p.extra_gradients) piece.src.push_back(base + extra);
      parameters.push_back({piece.dst, piece.dst + piece.size});
      spec.pieces.push_back(std::move(piece));
    }
  }
  for (int r = 0; r < plan.ranks; ++r) {
    spec.owned.push_back(lanes_of(r, plan.ranks, plan.lanes));
    spec.hosts.push_back(host_of(r, plan.ranks, static_cast<int>(job.layout.hosts)));
    spec.offsets.emplace_back();
    for (int64_t p = 0; p < partials_of(r, plan); ++p)
      spec.offsets.back().push_back((p * places.partial_floats + places.bucket_start[b]) * int64_t{sizeof(float)});
  }
  spec.slices = slices_of(parameters, spec.result_size, plan.ranks);
  spec.fold = job.layout.fold == "root" ? FoldAt::kRoot : FoldAt::kOwner;
  spec.kind = job.numerics.reduce == "ring" ? ReduceKind::kRing : ReduceKind::kExact;
  return spec;
}

GradientMemory::GradientMemory(const Program& program, const GradientPlaces& places, float* partials,
                               Accounts& accounts, MemorySource* source)
    : program_(program),
      places_(places),
      partials_(partials),
      arena_(BufferKind::kGradient, private_bytes(program), accounts, source),
      by_unit_(places.bucket_of.size()) {
  for (const Buffer& b : program.buffers)
    private_.push_back(is_private(b) ? arena_.take_floats(b.bytes / int64_t{sizeof(float)}).data() : nullptr);
}

float* GradientMemory::of(int buffer, int unit) const {
  const Buffer& b = program_.buffers[buffer];
  return b.partial < 0 ? private_[buffer] : partials_ + b.partial * places_.partial_floats + places_.of_unit(unit);
}

std::span<float* const> GradientMemory::of_backward(const Instruction& instruction) {
  for (int buffer : instruction.writes) {
    const Buffer& b = program_.buffers[buffer];
    if (b.kind != BufferKind::kGradient) continue;
    const int unit = b.unit < 0 ? instruction.block : b.unit;
    by_unit_[unit] = of(buffer, unit);
  }
  return by_unit_;
}

}  // namespace tutti
