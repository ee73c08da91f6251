// `gradient_norms`: the gradient norms of all tensors of a model, those of other ranks' experts included.
#pragma once

#include <string>
#include <vector>

#include "engine/session.h"

namespace hawser::engine {

struct TensorNorm {
  std::string name;
  float norm = 0;
  bool trainable = true;
};

// StepOutput::parameter_norms by name: of the tensors of the first rank's model, then, with expert ranks, of the
// experts of the others. The step has ended. Collective; every rank gets the same list.
std::vector<TensorNorm> gradient_norms(Session& session, const step::StepOutput& output);

}  // namespace hawser::engine
