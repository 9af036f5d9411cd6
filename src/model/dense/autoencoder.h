// The autoencoder: dense layers down to a code and up again. A variational one (VAE) draws its
// codes in training, so that codes drawn from a standard normal decode to samples like the data's.
#pragma once

#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// The whole model: blocks "encoder.0", ..., "code", "decoder.0", ... and "output", which ends with
/// the loss. The loss is the reconstruction of every feature, plus loss.kl times the codes'
/// divergence from a standard normal. model.hidden are the encoder's widths; the decoder has them
/// in reverse.
Model make_autoencoder(const Job& job);

/// The part of make_autoencoder's model that decodes. Its data are "code" [B, latent] float and
/// "targets"; its blocks and parameters have the same names. Its output is on the scale of the
/// features that the model was trained on (with loss.kind = "bce": in (0, 1)).
Model make_decoder(const Job& job);

}  // namespace tutti
