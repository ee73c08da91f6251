// Rows and columns of a matrix with its scales, as GEMMs read them. With one scale, it is also that of the part. Scales
// of blocks are copied where a part does not have its own in one piece.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

// Rows [first, first + rows), without Scaled::transposed; all of them: the matrix itself. With 1x128 scales, those of
// any rows: a row has its own. InternalError for 128x128 scales.
Scaled rows_of(LayerContext&, const Scaled& matrix, std::int64_t first, std::int64_t rows);

// Columns [first, first + columns) of what the matrix has: its view, and `transposed`, of which these are rows. With
// 1x128 scales of the view, InternalError unless they begin with a block: `first` is a multiple of ops::kScaleBlock.
Scaled columns_of(LayerContext&, const Scaled& matrix, std::int64_t first, std::int64_t columns);

}  // namespace hawser::nn
