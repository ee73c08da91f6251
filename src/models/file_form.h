// Reads and writes tensors in the form of a Hugging Face file (nn::FileForm): transposed, or with rows in another
// order. Regions and shapes are those of the model's form unless said otherwise.
#pragma once

#include "checkpoint/boxes.h"
#include "checkpoint/formats/safetensors.h"
#include "models/weights.h"

namespace hawser::models {

// Fills `out` (dense, cpu) with a region of the tensor `name`, whose file has the form `file`. Reads little more than
// the region, and transposes `piece_elements` at a time. Errors: those of SafetensorsFolder::read.
void read_region(checkpoint::SafetensorsFolder& folder, const std::string& name, const nn::FileForm& file,
                 const checkpoint::Region& region, const TensorView& out,
                 std::int64_t piece_elements = std::int64_t{4} << 20);

// Fills `out` (float32 [rows * row length of the file], dense, cpu) with rows [first, first + rows) of the tensor's
// file.
void read_file_rows(const StateSource& source, const HfTensor& tensor, std::int64_t first, std::int64_t rows,
                    const TensorView& out);

}  // namespace hawser::models
