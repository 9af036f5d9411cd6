// Convolutions and pooling against ATen's in float64. Tolerance: float32 chains of up to 9 x 70
// products, and of 200 pixels for the weight's gradient: 2e-6 of the largest value leaves room of
// about five.
#include "tensor/conv.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>

#include "kernel_case.h"

namespace tutti::test {
namespace {

constexpr double kTolerance = 2e-6;

Floats padded(const Floats& x, int64_t height, int64_t width, int64_t channels) {
  Floats out((height + 2) * (width + 2) * channels);
  for (int64_t h = 0; h < height; ++h)
    std::copy_n(x.begin() + h * width * channels, width * channels,
                out.begin() + ((h + 1) * (width + 2) + 1) * channels);
  return out;
}

/// [height, width, channels] as ATen's [1, channels, height, width].
at::Tensor planes(const Floats& x, int64_t height, int64_t width, int64_t channels) {
  return at::from_blob(const_cast<float*>(x.data()), {1, height, width, channels}, at::kFloat)
      .to(at::kDouble)
      .permute({0, 3, 1, 2});
}
at::Tensor pixels(const at::Tensor& planes) { return planes.permute({0, 2, 3, 1}).contiguous(); }

class Conv : public EachIsa {
 protected:
  void check(const ConvShape& s) {
    SCOPED_TRACE(testing::Message() << s.height << " x " << s.width << " x " << s.in << " to "
                                    << s.out << ", kernel " << s.kernel << ", stride " << s.stride);
    at::set_num_threads(1);
    const ConvKernels& k = conv_kernels(GetParam());
    const Floats x = normals(s.inputs(), 1), weight = normals(s.weights(), 2),
                 dy = normals(s.outputs(), 3);
    const Floats x_padded = padded(x, s.height, s.width, s.in);
    const Floats dy_padded = padded(dy, s.out_height(), s.out_width(), s.out);
    Floats panels(s.panels()), backward_panels(s.backward_panels()), y(s.outputs()), dx(s.inputs()),
        dw(s.weights());
    k.pack_weight(weight.data(), panels.data(), s);
    k.forward(x_padded.data(), panels.data(), y.data(), s);
    k.pack_weight_backward(weight.data(), backward_panels.data(), s);
    k.input_gradient(dy_padded.data(), backward_panels.data(), dx.data(), s, s.kernel == 1);
    k.weight_gradient(x_padded.data(), dy_padded.data(), panels.data(), s, true);
    k.weight_gradient(x_padded.data(), dy_padded.data(), panels.data(), s, false);
    k.unpack_weight(panels.data(), dw.data(), s);

    const at::Tensor tx = planes(x, s.height, s.width, s.in),
                     tdy = planes(dy, s.out_height(), s.out_width(), s.out);
    const at::Tensor tw = at::from_blob(const_cast<float*>(weight.data()),
                                        {s.out, s.in, s.kernel, s.kernel}, at::kFloat)
                              .to(at::kDouble);
    const at::IntArrayRef stride(s.stride);
    EXPECT_LT(distance(y, pixels(at::conv2d(tx, tw, {}, stride, s.kernel / 2))), kTolerance);
    const std::vector<int64_t> twice = {s.stride, s.stride}, rim = {s.kernel / 2, s.kernel / 2},
                               one = {1, 1}, none = {0, 0};
    const auto [want_dx, want_dw, unused] =
        at::convolution_backward(tdy, tx, tw, at::OptionalIntArrayRef(), twice, rim, one, false,
                                 none, 1, {true, true, false});
    EXPECT_LT(distance(dx, pixels(want_dx)), kTolerance);
    EXPECT_LT(distance(dw, 2 * want_dw), kTolerance);

    Floats on_top(s.inputs(), 1);
    k.input_gradient(dy_padded.data(), backward_panels.data(), on_top.data(), s, true);
    EXPECT_LT(distance(on_top, pixels(want_dx) + 1), kTolerance);
  }
};

TEST_P(Conv, AgreesWithATenAtEveryWidthOfAnImage) {
  for (int64_t width = 1; width <= 30; ++width) check({5, width, 3, 33});
  for (int64_t width = 1; width <= 17; ++width) check({6, width, 4, 8, 3, 2});
}
TEST_P(Conv, AgreesWithATenAtEveryNumberOfChannels) {
  for (const int64_t in : {1, 2, 3, 8, 16, 17, 33, 70})
    for (const int64_t out : {1, 7, 8, 16, 24, 32, 40, 65}) check({7, 7, in, out});
}
TEST_P(Conv, AgreesWithATenWithStridesAndSingleTaps) {
  for (const int64_t height : {1, 2, 3, 4, 7, 14})
    for (const int64_t kernel : {1, 3})
      for (const int64_t stride : {1, 2}) check({height, 9, 10, 20, kernel, stride});
}
TEST_P(Conv, AMaximumSendsItsGradientToTheFirstOfEqualsAndKeepsNaN) {
  const ConvKernels& k = conv_kernels(GetParam());
  constexpr int64_t side = 3, channels = 19;  // the last row and column belong to no window
  Floats y(side * side * channels, 2), ones(channels, 1), zeros(channels, 0), out(channels),
      dout(channels, 5);
  Floats dy((side + 2) * (side + 2) * channels, 0);
  const Affine affine{ones.data(), zeros.data()};
  const NormGradient plain{zeros.data(), ones.data(), zeros.data(), zeros.data()};
  k.pool_backward(dout.data(), y.data(), affine, plain, Activation::kRelu, Pool::kMax, dy.data(),
                  side, side, channels);
  const int64_t first = (side + 2 + 1) * channels;
  for (int64_t i = 0; i < static_cast<int64_t>(dy.size()); ++i)
    EXPECT_EQ(dy[i], i >= first && i < first + channels ? 5 : 0) << i;
  for (const int64_t pixel : {0L, 1L, side, side + 1}) {
    Floats bad = y;
    bad[pixel * channels + 18] = NAN;
    k.pool(bad.data(), affine, Activation::kRelu, Pool::kMax, out.data(), side, side, channels);
    EXPECT_TRUE(std::isnan(out[18])) << pixel;
    EXPECT_EQ(out[17], 2);
  }
}
INSTANTIATE_TEST_SUITE_P(Isa, Conv, testing::ValuesIn(kCodePaths), isa_name);

}  // namespace
}  // namespace tutti::test
