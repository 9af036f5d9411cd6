// What a column of the GPT computes on its rows of the residual stream: norms, and sums with
// dropout. This is Megatron's sequence parallelism: what works row by row is cut by rows.
#include "model/core/deferred.h"
#include "model/gpt/gpt_column_segments.h"

namespace tutti {

namespace {

/// The norm of a column's rows. Its output is a border, so of what GptNorm saves only the
/// statistics need memory.
template <class A>
class RowsNorm {
 public:
  RowsNorm(const GptColumn& column, const KernelsFor<A>& kernels, GptPlace place)
      : lines_(column.lines()), place_(place), norm_(lines_, kernels, place) {}
  RowsNorm(const RowsNorm&) = delete;

  bool exists() const { return place_.weight != kNoPlace; }
  int64_t saved_bytes() const {
    Carver memory;
    statistics(memory, nullptr);
    return memory.bytes();
  }
  void forward(const Context& context, const A* x, A* normed) const {
    Carver memory(context.saved);
    norm_.forward(context, x, statistics(memory, normed));
  }
  void backward(const Context& context, const SideGradients& sides, const A* dnormed, const A* x,
                const A* residual, A* dx) const {
    Carver memory(context.saved);
    norm_.backward(context, sides, dnormed, x, statistics(memory, nullptr), residual, dx);
  }

  // What the norm's backward leaves for the weight part.
  void add_to(SideGradients& sides, Carver& memory) const {
    sides.add({place_.weight, lines_.width}, memory);
    sides.add({place_.bias, lines_.width}, memory);
  }

 private:
  typename GptNorm<A>::Saved statistics(Carver& memory, A* normed) const {
    if (!exists()) return {};
    return {normed, memory.floats(lines_.rms ? 0 : lines_.rows()), memory.floats(lines_.rows())};
  }

  GptShape lines_;
  GptPlace place_;
  GptNorm<A> norm_;
};

template <class A>
class ColumnNorm final : public Segment {
 public:
  ColumnNorm(const GptColumn& column, const KernelsFor<A>& kernels, std::string name,
             GptPlace place, bool passes)
      : column_(column), name_(std::move(name)), passes_(passes), norm_(column, kernels, place) {}

  std::string name() const override { return name_; }
  std::vector<Border> inputs() const override { return {column_.stream()}; }
  std::vector<Border> outputs() const override {
    if (!passes_) return {column_.normed()};
    return {column_.normed(), column_.passed_stream()};
  }
  int64_t saved_bytes() const override { return norm_.saved_bytes(); }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override {
    Carver memory;
    sides(memory);
    return memory.bytes();
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    norm_.forward(context, data<A>(in[0]), data<A>(out[0]));
  }
  void backward(Context& context, Tensors in, Tensors, Tensors grad_out,
                Tensors grad_in) const override {
    run_backward(context, SideGradients(context.gradients), in, grad_out, grad_in);
  }
  void backward_input(Context& context, Tensors in, Tensors, Tensors grad_out,
                      Tensors grad_in) const override {
    Carver memory(context.deferred);
    run_backward(context, sides(memory), in, grad_out, grad_in);
  }
  void backward_weight(Context& context, Tensors, Tensors) const override {
    Carver memory(context.deferred);
    sides(memory).hand_over(context.gradients);
  }

 private:
  SideGradients sides(Carver& memory) const {
    SideGradients all({}, memory);
    norm_.add_to(all, memory);
    return all;
  }
  /// The gradient of the x that is passed on is in the memory of the input's gradient. So the norm
  /// adds to what is there.
  void run_backward(const Context& context, const SideGradients& sides, Tensors in,
                    Tensors grad_out, Tensors grad_in) const {
    norm_.backward(context, sides, data<A>(grad_out[0]), data<A>(in[0]),
                   passes_ ? data<A>(grad_out[1]) : nullptr, data<A>(grad_in[0]));
  }

  GptColumn column_;
  std::string name_;
  bool passes_;
  RowsNorm<A> norm_;
};

template <class A>
class ColumnJoin final : public Segment {
 public:
  ColumnJoin(const GptColumn& column, const KernelsFor<A>& kernels, std::string name, int bias,
             GptDropoutSite site, GptPlace norm)
      : column_(column),
        kernels_(kernels),
        name_(std::move(name)),
        bias_(bias),
        site_(site),
        norm_(column, kernels, norm) {}

  std::string name() const override { return name_; }
  std::vector<Border> inputs() const override { return {column_.part_rows(), column_.stream()}; }

  // The last join of a block has no norm after it: the next block begins with its own.
  std::vector<Border> outputs() const override {
    if (!norm_.exists()) return {column_.stream()};
    return {column_.stream(), column_.normed()};
  }
  int64_t saved_bytes() const override { return norm_.saved_bytes(); }
  bool splits() const override { return true; }
  int64_t deferred_bytes() const override {
    Carver memory;
    sides(memory);
    return memory.bytes();
  }

  void forward(Context& context, Tensors in, Tensors out) const override {
    // The second layer's bias is added to the sum over columns, once.
    const Dropout dropout = column_.dropout(context.pass, site_);
    kernels_.bias_residual(data<A>(in[0]), floats(context.parameters, bias_), data<A>(in[1]),
                           data<A>(out[0]), column_.rows(), column_.whole.width, &dropout);
    if (norm_.exists()) norm_.forward(context, data<A>(out[0]), data<A>(out[1]));
  }
  void backward(Context& context, Tensors, Tensors out, Tensors grad_out,
                Tensors grad_in) const override {
    run_backward(context, SideGradients(context.gradients), out, grad_out, grad_in);
  }
  void backward_input(Context& context, Tensors, Tensors out, Tensors grad_out,
                      Tensors grad_in) const override {
    Carver memory(context.deferred);
    run_backward(context, sides(memory), out, grad_out, grad_in);
  }
  void backward_weight(Context& context, Tensors, Tensors) const override {
    Carver memory(context.deferred);
    sides(memory).hand_over(context.gradients);
  }

 private:
  SideGradients sides(Carver& memory) const {
    SideGradients all({{bias_, column_.whole.width}}, memory);
    norm_.add_to(all, memory);
    return all;
  }

  /// The gradient of the sum goes to x first, because part's gradient may take the memory of the
  /// one that comes in.
  void run_backward(const Context& context, const SideGradients& sides, Tensors out,
                    Tensors grad_out, Tensors grad_in) const {
    // x gets what comes back through the stream, and if a norm follows, what comes back
    // through that.
    A *dpart = data<A>(grad_in[0]), *dx = data<A>(grad_in[1]);
    if (norm_.exists()) {
      norm_.backward(context, sides, data<A>(grad_out[1]), data<A>(out[0]), data<A>(grad_out[0]),
                     dx);
    } else if (dx != data<A>(grad_out[0])) {
      defer(grad_out[0], dx);
    }

    // part gets the same gradient through dropout. Without dropout the kernel writes only the
    // bias's gradient, so it is copied.
    const Dropout dropout = column_.dropout(context.pass, site_);
    kernels_.dropout_backward(dx, dpart, sides(bias_), column_.rows(), column_.whole.width,
                              &dropout);
    if (dropout.rate == 0) defer(grad_in[1], dpart);
  }

  GptColumn column_;
  const KernelsFor<A>& kernels_;
  std::string name_;
  int bias_;
  GptDropoutSite site_;
  RowsNorm<A> norm_;
};

}  // namespace

template <class A>
std::unique_ptr<Segment> make_column_norm(const GptColumn& column, const KernelsFor<A>& kernels,
                                          const std::string& name, GptPlace norm, bool passes) {
  return std::make_unique<ColumnNorm<A>>(column, kernels, name, norm, passes);
}
template <class A>
std::unique_ptr<Segment> make_column_join(const GptColumn& column, const KernelsFor<A>& kernels,
                                          const std::string& name, int bias, GptDropoutSite site,
                                          GptPlace norm) {
  return std::make_unique<ColumnJoin<A>>(column, kernels, name, bias, site, norm);
}

#define TUTTI_MAKE(A)                                                                        \
  template std::unique_ptr<Segment> make_column_norm(const GptColumn&, const KernelsFor<A>&, \
                                                     const std::string&, GptPlace, bool);    \
  template std::unique_ptr<Segment> make_column_join(                                        \
      const GptColumn&, const KernelsFor<A>&, const std::string&, int, GptDropoutSite, GptPlace);
TUTTI_FOR_ACTIVATIONS(TUTTI_MAKE)
#undef TUTTI_MAKE

}  // namespace tutti
