// Fills a session's parameters and optimizer state from a checkpoint or from weight files.
#pragma once

#include "checkpoint/checkpoint.h"
#include "engine/host_copy.h"
#include "engine/open_model.h"
#include "engine/session.h"

namespace hawser::engine {

// Fills the session's parameters and its optimizer's slots. What is not in `scope` stays as it is: the frozen weights
// of a checkpoint of adapters alone come from elsewhere. Frozen weights of step::FlatState::quantized_on_load, which
// the checkpoint has in float32 or bf16, are quantized as those of files are. Without StateScope::scales, the scales of
// quantized weights are measured. Where tensors that are one parameter on this mesh have different values, as those of
// another mesh may have, the largest is loaded (nn/granularity.h); but UserError if these are scales of frozen weights,
// which are a part of their values. Collective.
void load(Session& session, checkpoint::Checkpoint& checkpoint, StateScope scope = {});

// A problem if the session has Linears or experts in FP8 of which the checkpoint, of a run in FP8, has no scales: that
// run computed them in the compute dtype, as earlier versions did with all experts. The hint excludes them: they are
// added to the recipe's `exclude` (precision.fp8.exclude).
Problems missing_scales(Session& session, const checkpoint::Checkpoint& checkpoint, std::vector<std::string> exclude);

// Whether the checkpoint has something of what StateScope::scales loads: it is of a run with a quantizer.
bool has_scales(Session& session, const checkpoint::Checkpoint& checkpoint);

// Fills the parameters with a model's weights and adapters, then with what its checkpoint has. `seed`: of tensors that
// the weights do not have (nn::Segment::may_be_absent).
void load_weights(Session& session, OpenModel& open, std::uint64_t seed = 0);

}  // namespace hawser::engine
