// Keeps one plan per product, made at its first use, and says which products cuBLASLt may be
// asked for.
#include "cuda/matmul/lt_matmul.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <mutex>

#include "cuda/matmul/lt_plan.h"

namespace tutti {

namespace {

class Plans {
 public:
  Plans() { TUTTI_LT_CALL(cublasLtCreate, &handle_); }

  bool multiply(const LtProduct& product, const LtArrays& arrays) {
    const std::lock_guard lock(mutex_);
    auto found = plans_.find(product);
    if (found == plans_.end())
      found = plans_.emplace(product, make_lt_plan(product, handle_)).first;
    // A product that the library does not take is kept as well, so that it is asked only once.
    const LtPlan& plan = found->second;
    if (plan.chosen) check_lt(plan.run(handle_, arrays, *plan.chosen), "cublasLtMatmul");
    return plan.chosen.has_value();
  }

  template <class Each>
  void for_each(Each&& each) {
    const std::lock_guard lock(mutex_);
    for (const auto& [product, plan] : plans_)
      if (plan.chosen) each(product, plan, handle_);
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<LtProduct, LtPlan> plans_;
};

/// The process's plans, for its one device. Never destroyed: at exit cuBLASLt may be gone
/// before them.
Plans& plans() {
  static Plans& all = *new Plans;
  return all;
}

bool on_border(std::initializer_list<const void*> arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const void* array) {
    return reinterpret_cast<uintptr_t>(array) % kLtBorder == 0;
  });
}

}  // namespace

bool lt_multiply(const LtProduct& p, const LtArrays& arrays) {
  if (c10::elementSize(p.in) != 2 || p.m == 0 || p.n == 0 || p.k == 0) return false;
  constexpr int64_t kElements = kLtBorder / 2;
  // Rows of the operands and of the result must be multiples of 16 bytes. Half as many elements
  // would do for a float32 result, but the rule is kept simple.
  if ((p.a_transposed ? p.m : p.k) % kElements != 0 ||
      (p.b_transposed ? p.k : p.n) % kElements != 0 || p.n % kElements != 0)
    return false;

  // Null arrays count as aligned.
  if (!on_border({arrays.a, arrays.b, arrays.c, arrays.bias, arrays.residual, arrays.aux}))
    return false;
  return plans().multiply(p, arrays);
}

void for_each_lt_plan(
    const std::function<void(const LtProduct&, const LtPlan&, cublasLtHandle_t)>& each) {
  plans().for_each(each);
}

}  // namespace tutti
