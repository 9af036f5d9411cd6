// The functions of libm that a result may depend on, with the same bits on every processor. libm
// chooses other code by processor and version; these are made of additions, products, divisions
// and integers alone, which IEEE 754 rounds in one way. They are within one unit in the last place,
// and nine results of ten are the number next to the true value.
//
// Denormal numbers count as zero, and results below 1e-307 are zero, so that threads which flush
// them and threads which do not agree.
#pragma once

namespace tutti::portable {

double exp(double x);
double log(double x);  ///< of 0: -inf; of less: NaN
/// log(1 + x) where 1 + x would lose the last bits of a small x.
double log1p(double x);
/// x^y for x >= 0.
double pow(double x, double y);
/// For |x| up to 1e6. Beyond, ever more of the last bits are wrong, though the same everywhere.
double sin(double x);
double cos(double x);
struct Waves {
  double sine, cosine;
};
/// Both, for the price of one and a half.
Waves sin_cos(double x);

}  // namespace tutti::portable
