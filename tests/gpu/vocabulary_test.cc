// The GPU's kernels for slices of a vocabulary: embedding and positions against the CPU's, the loss
// against that of the whole vocabulary. Tolerances: sums over float32 values in another order 2e-5;
// a log-sum-exp joined from slices is rounded at other places, 2e-6.
#include "gpu/row_side.h"

namespace tutti {
namespace {

constexpr double kSums = 2e-5, kJoined = 2e-6;

template <class A>
class GpuVocabulary : public RowTest<A> {};
TYPED_TEST_SUITE(GpuVocabulary, Activations);

struct Size {
  int64_t rows, cols;
};

TYPED_TEST(GpuVocabulary, EmbedsTheTokensOfItsSlice) {
  const int64_t first = 300, count = 200, vocab = 700;
  for (const auto& [rows, cols] : {Size{1, 1}, Size{300, 37}, Size{4096, 192}, Size{7, 1000}}) {
    std::vector<int64_t> tokens;
    for (int64_t r = 0; r < rows; ++r)  // a third of the rows have one token
      tokens.push_back(r % 3 == 0 ? first + 5 : static_cast<int64_t>(this->random() % vocab));
    const Floats table = this->values(count * cols), dout = this->values(rows * cols);
    this->compare(
        fmt::format("embed {} x {}", rows, cols), {kExact, kSums},
        [&, rows = rows, cols = cols](auto& side) {
          const int64_t* const ids = side.ids(tokens);
          side.table.vocabulary.embed(ids, side.floats(table), side.float_result(rows * cols), rows,
                                      cols, first, count);
          side.table.vocabulary.embed_backward(
              ids, side.array(dout), side.float_result(count * cols), rows, cols, first, count);
        });
  }
}

TYPED_TEST(GpuVocabulary, AddsThePositionsAndDrawsTheMasksOfItsRows) {
  const int64_t length = 100;
  for (const auto& [rows, cols] : {Size{1, 1}, Size{30, 37}, Size{300, 192}, Size{250, 1000}}) {
    for (const int64_t first_row : {0, 137, 300}) {
      for (const double rate : {0.0, 0.3}) {
        Dropout dropout{
            .rate = rate, .seed = 11, .step = 5, .block = 3, .site = 1, .first_sample = 1000};
        dropout.rows_per_sample = length;
        dropout.first_row = first_row;
        const Floats x = this->values(rows * cols), position = this->values(length * cols),
                     dout = this->values(rows * cols);
        this->compare(fmt::format("{} x {} from row {}, rate {}", rows, cols, first_row, rate),
                      {kExact, kExact, kExact, kSums}, [&, rows = rows, cols = cols](auto& side) {
                        const auto& vocabulary = side.table.vocabulary;
                        vocabulary.positions(side.array(x), side.floats(position),
                                             side.result(rows * cols), rows, first_row, length,
                                             cols, &dropout);
                        vocabulary.positions(side.array(x), nullptr, side.result(rows * cols), rows,
                                             first_row, length, cols, &dropout);
                        auto* const d = side.array(dout, true);
                        vocabulary.positions_backward(d, d, side.float_result(length * cols), rows,
                                                      first_row, length, cols, &dropout);
                      });
      }
    }
  }
}

TYPED_TEST(GpuVocabulary, SlicesHaveTheLossOfTheWhole) {
  using A = TypeParam;
  const int64_t slices = 3, rows = 300;
  const KernelsFor<A>& table = table_of<A>(this->library);
  for (const int64_t count : {1, 37, 96, 1000}) {
    SCOPED_TRACE(fmt::format("slices of {}, seed {}", count, kSeed));
    const int64_t cols = slices * count;
    const std::vector<A> logits = normals<A>(this->random, rows * cols, 3);
    std::vector<int64_t> ids;
    for (int64_t r = 0; r < rows; ++r) ids.push_back(r % 5 == 4 ? -1 : r * 7919 % cols);
    const auto array = [&](const auto& values) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      return std::make_unique<GpuArray<T>>(*this->device, this->stream, values);
    };
    const auto targets = array(ids);
    const auto scale = array(std::vector<double>{64});
    const auto whole = array(logits), dwhole = array(unwritten<A>(rows * cols));
    const auto lse = array(unwritten<float>(rows)), joined = array(unwritten<float>(rows));
    const auto result = array(std::vector<double>(2, NAN)),
               sliced_result = array(std::vector<double>(2, NAN));
    table.cross_entropy(whole->data(), targets->data(), lse->data(), result->data(), rows, cols);
    table.cross_entropy_backward(whole->data(), targets->data(), lse->data(), scale->data(),
                                 dwhole->data(), rows, cols);

    const auto statistics = array(unwritten<float>(slices * rows * 3));
    std::vector<std::unique_ptr<GpuArray<A>>> parts;
    for (int64_t s = 0; s < slices; ++s) {
      std::vector<A> part;
      for (int64_t r = 0; r < rows; ++r)
        part.insert(part.end(), logits.begin() + r * cols + s * count,
                    logits.begin() + r * cols + (s + 1) * count);
      parts.push_back(array(part));
      table.vocabulary.statistics(parts[s]->data(), targets->data(),
                                  statistics->data() + s * rows * 3, rows, s * count, count);
    }
    table.vocabulary.cross_entropy(statistics->data(), targets->data(), joined->data(),
                                   sliced_result->data(), rows, slices);
    EXPECT_NEAR(sliced_result->get()[0] / result->get()[0], 1, kJoined);
    EXPECT_EQ(sliced_result->get()[1], result->get()[1]);
    const auto wanted = dwhole->get();
    for (int64_t s = 0; s < slices; ++s) {
      A* const x = parts[s]->data();  // in place
      table.vocabulary.cross_entropy_backward(x, targets->data(), joined->data(), scale->data(), x,
                                              rows, s * count, count);
      const auto got = parts[s]->get();
      for (int64_t i = 0; i < rows * count; ++i) {
        const float want = static_cast<float>(wanted[i / count * cols + s * count + i % count]);
        // of 64: both are rounded to A, and their exponents differ by kJoined of a logit of up to
        // about 20
        ASSERT_NEAR(static_cast<float>(got[i]), want, 64 * (2 * kRounding<A> + 20 * kJoined))
            << "slice " << s;
      }
    }
  }
}

}  // namespace
}  // namespace tutti
