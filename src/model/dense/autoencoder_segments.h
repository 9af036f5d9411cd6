// What an autoencoder has beside dense layers, by hand, for the CPU: one element at a time in
// float64, with the same bits on every processor.
#pragma once

#include <memory>
#include <optional>

#include "model/core/segment.h"
#include "model/loss/value_loss.h"

namespace tutti {

/// The code of what the linear layer before it puts out, and the code's divergence from a standard
/// normal. A variational layer has [B, 2 latent]: means and logarithms of variances, from which
/// training draws and of which evaluation takes the means. Another one is the code, without
/// a divergence.
std::unique_ptr<Segment> make_code(const Border& linear, const Border& code, const Border& kl);

/// What a reconstruction is compared with.
struct Compared {
  ElementLoss element;
  LossConfig config;
  Border features, targets, kl;  ///< a row whose target is -1 is padding
};
/// The features that `output` stands for (of logits their probabilities), and the loss: the sum
/// over all elements of rows that count plus config.kl times these rows' divergence, and the number
/// of these elements. A decoder compares nothing; its loss is (0, 0).
std::unique_ptr<Segment> make_reconstruction(const Border& output, const Border& values,
                                             bool logits, std::optional<Compared> compared);

}  // namespace tutti
