// CPU backend of the embedding. Arguments are already checked.
#pragma once

#include "ops/embedding/embedding.h"

namespace hawser::ops::cpu {

void embedding_forward(const EmbeddingForward& args);
void embedding_backward(const EmbeddingBackward& args);

}  // namespace hawser::ops::cpu
