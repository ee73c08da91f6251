// CUDA backend of the embedding. Arguments are already checked.
#pragma once

#include "ops/embedding/embedding.h"

namespace hawser::ops::cuda {

void embedding_forward(const CudaNative& native, const EmbeddingForward& args);
void embedding_backward(const CudaNative& native, const EmbeddingBackward& args);

}  // namespace hawser::ops::cuda
