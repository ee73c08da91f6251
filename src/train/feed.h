// From the data room's micro-batches to what the executor copies to the device.
#pragma once

#include <memory>

#include "data/micro_batch.h"
#include "step/batch.h"

namespace hawser::train {

// Diagonal blocks refer to the rank's own key rows, off-diagonal blocks to the sequence order; the chunk table becomes the place of each
// row among gathered keys (nn::BatchViews::gather_index).
std::shared_ptr<step::HostBatch> to_host_batch(const data::MicroBatch& batch, const data::BatchShape& shape);

// Query-key pairs that see each other in it, a head, causal attention without a window.
double visible_pairs(const data::MicroBatch& batch);

}  // namespace hawser::train
