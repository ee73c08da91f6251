// `Nf4Loader`: quantizes a session's frozen weights in NF4 as they are loaded, a piece of values at a time, so that no
// flat exists in float32.
//
//   Nf4Loader loader(stream, state, model, mesh, staged, workspace);
//   for (const nn::Unit& unit : model.units()) {
//     for (const int flat : unit.flats) loader.load(flat, fill);   // codes, and the scales of this rank's blocks
//     loader.finish_unit();                                        // double quantization: the scales of all ranks
//   }
//
// Collective: ranks that have parts of a flat call load() in one order, and finish_unit() when the flats of a unit are
// loaded: all parts of a global tensor are in one unit, if not in one flat. Results have the same bits on every mesh.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/staged_weights.h"
#include "models/weights.h"
#include "step/weight_scales.h"
#include "tensor/nf4.h"

namespace hawser::engine {

class Nf4Loader {
 public:
  // Writes elements [first, first + values.elements()) of this rank's shard of a flat to `values`, float32 of the
  // device, on the stream or before it returns.
  using Fill = std::function<void(std::int64_t first, const TensorView& values)>;
  // All arguments outlive this. `sources`: where files have a tensor in the form of the flat, with double quantization
  // (checkpoint::QuantizedTensor), its blocks and groups are taken as they are.
  Nf4Loader(Stream& stream, const step::ModelState& state, const models::Model& model, comm::Mesh& mesh,
            StagedWeights& staged, step::Workspace workspace, const models::WeightSources* sources = nullptr);

  // Waits for the stream.
  void load(int flat, const Fill& fill);
  void finish_unit();

 private:
  // Where the files have these blocks; files is null if they do not.
  models::WeightSources::Place stored(const nn::Segment& segment) const;
  void copy_stored(int flat, const TensorView& blocks);
  void encode(int flat);

  Stream& stream_;
  const step::ModelState& state_;
  const models::Model& model_;
  comm::Mesh& mesh_;
  StagedWeights& staged_;
  step::Workspace workspace_;
  const models::WeightSources* sources_;
  std::vector<int> flats_;                            // of the unit, in nf4_double
  std::map<std::string, std::vector<float>> scales_;  // of all blocks of the unit's tensors
};

}  // namespace hawser::engine
