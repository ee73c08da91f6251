// Conversion of micro-batches of module data to the host tables that the executor copies to the device.
#pragma once

#include <memory>

#include "batches/micro_batch.h"
#include "step/batch.h"

namespace hawser::engine {

// Diagonal blocks refer to the rank's own K rows, off-diagonal blocks to the sequence order. The chunk table becomes
// the index of each row in the gathered K buffer (nn::BatchViews::gather_index).
std::shared_ptr<step::HostBatch> to_host_batch(const batches::MicroBatch& batch, const batches::BatchShape& shape);

// Visible query-key pairs of the micro-batch per head; with an all-to-all over heads, this rank's part of
// them.
double visible_pairs(const batches::MicroBatch& batch, const batches::BatchShape& shape,
                     const AttentionMask& mask = {});

}  // namespace hawser::engine
