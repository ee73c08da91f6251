// `make_adafactor`: Adafactor, whose second moment of a matrix is one value for each row and column; formulas in
// ops/adafactor/adafactor.h.
//
// Example: of a matrix [4096, 14336] the state is 4096 + 14336 + 1 values in place of 59 million. Flats with
// FlatSpec::elementwise, whose tensors have one dim (adafactor_specs), have a value for each element.
//
// The update is clipped by its root mean square over the matrix, so it has phases: sums of squares by row and column,
// then sums of the update's squares. Weights are in FlatSpec::stored, rounded stochastically in bf16. Weight decay
// applies to parameters with nn::Param::decay. Slots: "exp_avg_sq_row", "exp_avg_sq_col" and "exp_avg_sq_mean", or
// "exp_avg_sq"; float32.
#pragma once

#include <memory>

#include "optim/groups.h"

namespace hawser::optim {

struct AdafactorSettings {
  bool scale_parameter = false;  // the learning rate of a matrix is relative to the root mean square of its weights
  bool relative_step = false;    // the learning rate is at most 1 / sqrt(n) in update n
  Groups groups = {};
};
std::shared_ptr<const Optimizer> make_adafactor(const AdafactorSettings& settings = {});

// `spec_of` with FlatSpec::elementwise for parameters that are no matrices.
nn::FlatSpecOf adafactor_specs(nn::FlatSpecOf spec_of);

}  // namespace hawser::optim
