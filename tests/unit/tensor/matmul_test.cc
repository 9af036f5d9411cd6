// MKL's products against ATen's mm, the same library underneath; the own ones against a plain loop.
// Both bit for bit.
#include "tensor/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "kernel_case.h"

namespace tutti::test {
namespace {

enum class Kind { kNt, kNn, kTn };
constexpr Kind kKinds[] = {Kind::kNt, Kind::kNn, Kind::kTn};

struct Sizes {
  int64_t m, n, k;
};

/// Floats that end where a page begins that may not be touched.
class Fenced {
 public:
  explicit Fenced(int64_t n, const float* values = nullptr) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)),
                 bytes = static_cast<size_t>(n) * sizeof(float);
    size_ = (bytes / page + 2) * page;
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(static_cast<void*>(memory_), MAP_FAILED);
    EXPECT_EQ(mprotect(memory_ + size_ - page, page, PROT_NONE), 0);
    end_ = reinterpret_cast<float*>(memory_ + size_ - page);
    data_ = end_ - n;
    std::fill(reinterpret_cast<float*>(memory_), end_, kGuard);
    if (values != nullptr) std::copy(values, values + n, data_);
  }
  ~Fenced() { munmap(memory_, size_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  float* data() const { return data_; }
  Floats values() const { return {data_, end_}; }
  bool untouched_before() const {
    return std::all_of(reinterpret_cast<const float*>(memory_), static_cast<const float*>(data_),
                       [](float x) { return x == kGuard; });
  }

 private:
  static constexpr float kGuard = 1e30f;  // would show in any sum
  std::byte* memory_;
  size_t size_;
  float *data_, *end_;
};

Matmul::Product<float> product(const Matmul& matmul, Kind kind) {
  return kind == Kind::kNt ? matmul.nt : kind == Kind::kNn ? matmul.nn : matmul.tn;
}

/// Runs it with every array fenced and no more scratch than it asks for.
Floats run(const Matmul& matmul, Kind kind, Sizes s, const Floats& a, const Floats& b) {
  const Fenced fa(s.m * s.k, a.data()), fb(s.k * s.n, b.data()), c(s.m * s.n),
      work(matmul.work(s.m, s.n, s.k));
  product(matmul, kind)(fa.data(), fb.data(), c.data(), s.m, s.n, s.k, work.data());
  EXPECT_TRUE(c.untouched_before() && work.untouched_before());
  return c.values();
}

/// One chain of FMAs per element, in the order of k.
Floats chains(Kind kind, Sizes s, const Floats& a, const Floats& b) {
  Floats c(static_cast<size_t>(s.m * s.n));
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum = std::fma(kind == Kind::kTn ? a[k * s.m + i] : a[i * s.k + k],
                       kind == Kind::kNt ? b[j * s.k + k] : b[k * s.n + j], sum);
      }
      c[i * s.n + j] = sum;
    }
  }
  return c;
}

class OwnMatmul : public EachIsa {
 protected:
  void expect_chains(Sizes s) {
    const Floats a = normals(s.m * s.k, 1), b = normals(s.k * s.n, 2);
    for (const Kind kind : kKinds) {
      EXPECT_TRUE(same_bits(run(table->matmul, kind, s, a, b), chains(kind, s, a, b)))
          << s.m << " x " << s.n << " x " << s.k << ", kind " << static_cast<int>(kind);
    }
  }
};

TEST_P(OwnMatmul, AnElementIsOneChainOfFmasAtEveryEdgeOfATile) {
  for (const int64_t m : {1, 2, 5, 6, 7, 13, 14, 15, 29}) {
    for (const int64_t n : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49}) {
      for (const int64_t k : {1, 3, 8, 16, 17, 35}) expect_chains({m, n, k});
    }
  }
}

TEST_P(OwnMatmul, AnElementIsOneChainOfFmasAcrossChunksPanelsAndTheWaysToReadB) {
  for (const Sizes s :
       {Sizes{15, 33, 383}, Sizes{15, 33, 384}, Sizes{15, 40, 385}, Sizes{3, 20, 1200},
        Sizes{17, 384, 20}, Sizes{17, 385, 20}, Sizes{9, 1000, 401}, Sizes{1024, 37, 19},
        Sizes{1025, 37, 19}, Sizes{64, 192, 96}, Sizes{96, 64, 512}, Sizes{26, 15, 700},
        Sizes{125, 29, 31}, Sizes{128, 14, 1300}, Sizes{1030, 256, 24}}) {
    expect_chains(s);
  }
}

TEST_P(OwnMatmul, RowsAndColumnsDoNotDependOnTheOthers) {
  const Sizes s{40, 70, 50};
  const Floats a = normals(s.m * s.k, 3), b = normals(s.k * s.n, 4);
  const Floats all = run(table->matmul, Kind::kNt, s, a, b);
  const Floats row =
      run(table->matmul, Kind::kNt, {1, s.n, s.k}, {a.begin() + 33 * s.k, a.begin() + 34 * s.k}, b);
  EXPECT_TRUE(same_bits(row, {all.begin() + 33 * s.n, all.begin() + 34 * s.n}));
  const Floats column =
      run(table->matmul, Kind::kNt, {s.m, 1, s.k}, a, {b.begin() + 66 * s.k, b.begin() + 67 * s.k});
  for (int64_t i = 0; i < s.m; ++i) EXPECT_EQ(column[i], all[i * s.n + 66]);
}

TEST_P(OwnMatmul, WhatIsNotFiniteStaysInItsRowAndColumn) {
  const Sizes s{20, 37, 30};
  Floats a = normals(s.m * s.k, 5), b = normals(s.k * s.n, 6);
  a[19 * s.k + 4] = INFINITY;
  b[2 * s.n + 36] = NAN;
  const Floats c = run(table->matmul, Kind::kNn, s, a, b);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j)
      EXPECT_EQ(std::isfinite(c[i * s.n + j]), i != 19 && j != 36) << i << " " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, OwnMatmul, testing::ValuesIn(kCodePaths), isa_name);

TEST(Matmul, MklHasTheBitsOfAtensMm) {
  at::set_num_threads(1);
  const Sizes s{48, 35, 61};
  const Floats a = normals(s.m * s.k, 1), b = normals(s.k * s.n, 2);
  const auto view = [](const Floats& x, int64_t rows, int64_t cols) {
    return at::from_blob(const_cast<float*>(x.data()), {rows, cols}, at::kFloat);
  };
  const auto values = [](const at::Tensor& t) {
    return Floats(t.const_data_ptr<float>(), t.const_data_ptr<float>() + t.numel());
  };
  EXPECT_TRUE(same_bits(run(mkl_matmul(), Kind::kNn, s, a, b),
                        values(at::mm(view(a, s.m, s.k), view(b, s.k, s.n)))));
  EXPECT_TRUE(same_bits(run(mkl_matmul(), Kind::kNt, s, a, b),
                        values(at::mm(view(a, s.m, s.k), view(b, s.n, s.k).t()))));
  EXPECT_TRUE(same_bits(run(mkl_matmul(), Kind::kTn, s, a, b),
                        values(at::mm(view(a, s.k, s.m).t(), view(b, s.k, s.n)))));
}

TEST(Matmul, OverNothingIsZeroAndOfNothingIsNothing) {
  const CodePath isa = fastest_path();
  for (const MatmulKind by : {MatmulKind::kMkl, MatmulKind::kOwn}) {
    const Matmul& matmul = kernels(isa, by).matmul;
    for (const Kind kind : kKinds) {
      EXPECT_EQ(run(matmul, kind, {3, 20, 0}, {}, {}), Floats(60, 0.0f));
      EXPECT_EQ(run(matmul, kind, {0, 5, 7}, {}, normals(35, 1)), Floats{});
      EXPECT_EQ(run(matmul, kind, {5, 0, 7}, normals(35, 1), {}), Floats{});
    }
  }
}

TEST(Matmul, ATableHasTheMatmulsThatWereAskedFor) {
  EXPECT_EQ(kernels(CodePath::kAvx2, MatmulKind::kMkl).matmul.nt, mkl_matmul().nt);
  EXPECT_NE(kernels(CodePath::kAvx2, MatmulKind::kOwn).matmul.nt, mkl_matmul().nt);
  EXPECT_EQ(kernels(CodePath::kAvx2, MatmulKind::kMkl).layer_norm,
            kernels(CodePath::kAvx2, MatmulKind::kOwn).layer_norm);
}

}  // namespace
}  // namespace tutti::test
