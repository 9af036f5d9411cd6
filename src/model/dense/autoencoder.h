// The autoencoder: dense layers down to a code and up again. A variational one draws its codes in
// training, so that codes drawn from a standard normal decode to samples like the data's.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// Blocks "encoder.0", ..., "code", "decoder.0", ... and "output", which ends with the loss: the
/// reconstruction of every feature, plus loss.kl times the codes' divergence from a standard
/// normal. model.hidden are the encoder's widths; the decoder has them in reverse.
Model make_autoencoder(const Job& job);

/// A part of make_autoencoder's model that decodes: data "code" [B, latent] float and "targets";
/// same names of blocks and parameters. Its output is on the scale of the features the model was
/// trained on (loss.kind = "bce": in (0, 1)).
Model make_decoder(const Job& job);

}  // namespace tutti
