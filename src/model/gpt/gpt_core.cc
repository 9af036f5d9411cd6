// What attention and the mlp have in common: the layout of their memory, and the gradients of
// their weights.
#include "model/gpt/gpt_core.h"

#include <algorithm>

namespace tutti {

// Two matmuls at 2 operations per weight and row, and the middle.
double GptCoreShape::flops() const {
  return 2 * static_cast<double>(rows) * static_cast<double>(width) *
             static_cast<double>(columns + inner) +
         middle_flops;
}

template <class A>
typename GptCore<A>::Memory GptCore<A>::memory(Carver& saved, Carver& work) const {
  const auto& matmul = kernels_.matmul;
  Memory m{};

  // Scratch is sized for the largest of the kernels, which run one after the other.
  m.first = saved.take<A>(shape.rows * shape.columns);
  m.inner = saved.take<A>(shape.rows * shape.inner);
  m.statistics = saved.floats(shape.statistics);
  m.scratch = work.floats(
      std::max({shape.scratch, matmul.layer_work(shape.rows, shape.width, shape.columns),
                matmul.layer_work(shape.rows, shape.inner, shape.width)}));
  m.dinner = work.take<A>(shape.inner_gradient);
  m.dfirst = work.take<A>(shape.rows * shape.columns);
  return m;
}

template <class A>
typename GptCore<A>::Between GptCore<A>::between(std::initializer_list<SideGradients::Side> sides,
                                                 Carver memory) const {
  Between d{SideGradients(sides, memory), memory.take<A>(shape.rows * shape.width),
            memory.take<A>(shape.rows * shape.columns), 0};
  d.bytes = memory.bytes();
  return d;
}

template <class A>
void GptCore<A>::weight_part(const Context& context, const Memory& m, const A* normed,
                             const A* dsecond, const A* dfirst) const {
  // In the same order as a backward in one part, so that both make the same calls.
  second(context, m).backward_weight(dsecond, m.inner);
  first(context, m).backward_weight(dfirst, normed);
}

#define TUTTI_MAKE(A) template class GptCore<A>;
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
