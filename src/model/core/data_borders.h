// The tensors that a job's data has, by the kind of the model and of the loss. Models and datasets
// agree on them through this.
#pragma once

#include <vector>

#include "config/check/table_columns.h"
#include "config/job.h"
#include "model/core/segment.h"

namespace tutti {

/// The model's inputs, then the targets, then what mixup adds. B is train.micro_batch_size.
///   gpt               "tokens" [B, context] int64
///   mlp, autoencoder  "features" [B, inputs] float
///   cnn               "images" [B, channels, height, width] float
///   script            "images" of data that can give them, else "features"
///   wide-deep         "numbers" [B, n] float, "categories" [B, m] int64; n and m come from
///                     data.columns or from what is generated
///   targets           "targets": gpt [B, context] int64; losses of classes and autoencoder
///                     [B] int64; losses of values [B, outputs] float
///   mixup             "other_targets" like targets, "mix" [B] float: the weight of other_targets
///                     (0 in evaluation)
/// A target of -1, or NaN where targets are floats, means that there is none: the loss and the
/// metrics leave it out. Throws Error if data.columns do not add up to what the model takes.
std::vector<Border> data_borders(const Job& job);

/// Numbers and categories of a record of fields: those of the columns, or of the generated records.
ColumnSizes fields_of(const Job& job);

/// Whether targets are classes (int64) or values (float), by the kinds of the model and of the
/// loss. A loss of `auto` counts as cross-entropy; in a resolved job there is none.
bool targets_are_classes(const Job& job);

}  // namespace tutti
