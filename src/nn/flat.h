// `Flat`: parameters that are stored, sharded, all-gathered, reduced and updated together, as one flat buffer. `Unit`:
// the flats of the embedding, of a block or of the head, which are used together, as in FSDP.
//
// Example: the flat of an MLP with width 64 and inner width 96, sharded over 4 ranks.
//
//   parameter        offset   elements
//   norm [64]             0         64   then a gap of 64: parameters and shards begin at multiples of FlatSpec::grain
//   up [96, 64]         128       6144
//   down [64, 96]      6272       6144   used() is 12416, total(4) is 12800
//
// Rank r stores and updates elements [3200 r, 3200 (r + 1)). A shard may begin inside a parameter: rank 1's begins at
// row 48 of `up`. Before a layer reads the flat, an all-gather writes all 12800 elements, and view(flat, 1) is `up`.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nn/param.h"

namespace hawser::nn {

// The shape of `count` elements of a flat, a multiple of FlatSpec::grain, in a dtype: those of NF4 are blocks.
inline Shape flat_shape(DType dtype, std::int64_t count) {
  return {count / values_per_element(dtype)};
}

class Flat {
 public:
  static constexpr std::int64_t kAlignmentElements = 128;

  Flat(std::string name, FlatSpec spec, std::vector<Param> params);

  const std::string& name() const { return name_; }  // unique in the model
  const FlatSpec& spec() const { return spec_; }
  const std::vector<Param>& params() const { return params_; }
  std::int64_t offset(int param) const { return offsets_[static_cast<std::size_t>(param)]; }
  // Elements up to the end of the last parameter, rounded up to a multiple of FlatSpec::grain.
  std::int64_t used() const { return used_; }
  // Elements of the flat buffer if it is sharded over `parts` ranks: used(), rounded up to a multiple of
  // parts * FlatSpec::grain.
  std::int64_t total(int parts) const;
  // The view of a parameter in the unsharded flat buffer. Its last dim counts elements of the buffer's dtype: blocks of
  // NF4.
  TensorView view(const TensorView& flat, int param) const;
  // The view of a matrix with rows and columns exchanged, in a buffer that has each parameter's elements where the flat
  // buffer has them, in that order (FlatSpec::transposed). Of several matrices (Param::gemm_matrices) each is
  // exchanged, and the view has all their rows: [parts * columns, rows of one].
  TensorView transposed_view(const TensorView& flat, int param) const;
  // The float32 scales of all parameters, one parameter after another, and those of one, [Param::gemm_matrices()]: the
  // values of kScaleGranularity (nn/granularity.h). Without FlatSpec::scaled: 0, empty.
  std::int64_t scale_count() const { return scale_offsets_.back(); }
  std::int64_t scale_offset(int param) const { return scale_offsets_[static_cast<std::size_t>(param)]; }
  TensorView scale_view(const TensorView& scales, int param) const;
  // The elements of a flat buffer of `total` elements between parameters and after the last one. They must stay zero in
  // gradients.
  std::vector<IndexRange> gaps(std::int64_t total) const;

 private:
  std::string name_;
  FlatSpec spec_;
  std::vector<Param> params_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> scale_offsets_ = {0};  // and the end of the last
  std::int64_t used_ = 0;
};

// Which unit of a model.
struct UnitId {
  enum class Kind { embedding, block, head };
  Kind kind = Kind::block;
  int block = -1;  // number of the block, from 0
};

// A unit, as in FSDP: what is gathered together before it is used.
struct Unit {
  std::string name;        // "embedding", "block 3", "head"
  std::vector<int> flats;  // indices in the model's list of flats
};

// Decides the spec of a parameter's flat; Param::flat is what its layer asks for. The place lets a rule give parameters
// of some blocks a FlatSpec::group of their own: for an optimizer that treats only the matrices of blocks in its own
// way, or for learning rates that depend on depth.
class FlatSpecOf {
 public:
  // A function of (const Param&, const UnitId&), or of the Param alone.
  template <class Rule>
  requires(!std::is_same_v<std::remove_cvref_t<Rule>, FlatSpecOf>) FlatSpecOf(Rule rule) {
    if constexpr (std::is_invocable_v<Rule, const Param&, const UnitId&>) {
      rule_ = std::move(rule);
    } else {
      rule_ = [rule = std::move(rule)](const Param& param, const UnitId&) { return rule(param); };
    }
  }
  FlatSpec operator()(const Param& param, const UnitId& place = {}) const { return rule_(param, place); }

 private:
  std::function<FlatSpec(const Param&, const UnitId&)> rule_;
};
// For meshes without tensor and expert parallelism, where all domains are sharded over the same ranks: puts every
// parameter in Domain::sliced, so that they share a flat.
FlatSpec common_domain(const Param&);
// `spec_of` with weights of Linears and experts in FP8 (nn/precision/fp8_scaling.h) in the blocks for which
// in_fp8(block) is true: they are gathered in E4M3 with one scale each, and backward reads their transpose. Frozen ones
// are stored in E4M3, too.
FlatSpecOf with_fp8_weights(FlatSpecOf spec_of, std::function<bool(int)> in_fp8);
// `spec_of` with weights of Linears and experts of these blocks that are rounded to FP8 where they are read
// (FlatSpec::quantized_on_use, nn/precision/fp8_block_scaling.h).
FlatSpecOf with_weights_quantized_on_use(FlatSpecOf spec_of, std::function<bool(int)> in_fp8);
// `spec_of` with frozen weights of Linears and experts of these blocks in NF4 (FlatSpec::packed), as in QLoRA. `form`:
// DType::nf4, or nf4_double for scales in 8 bits.
FlatSpecOf with_nf4_weights(FlatSpecOf spec_of, std::function<bool(int)> in_nf4, DType form = DType::nf4);
// `spec_of` with FlatSpec::partial_gradient for parameters of residual rows, as sequence parallelism needs it.
FlatSpecOf with_sequence_parallelism(FlatSpecOf spec_of);

// A parameter as the index of a flat and of a parameter in it.
struct ParamIndex {
  int flat = 0, index = 0;
};

// Adds a unit: its parameters are put into one flat for each spec, in the order in which the specs first occur, and
// keep their order in a flat. The first flat takes the unit's name; another appends what differs: "block 3, frozen".
// Returns the places of the parameters.
//
// A Param::shared is not added: its place is that of the parameter of its name, in this unit or an earlier one. That
// parameter is one of the model like any other: it has initial values, a state, a gradient norm and tensors in
// checkpoints once, as its first layer declares it. Each layer that uses it adds to its gradient, in the order of their
// backwards (GradientSink). A unit that uses parameters of an earlier one is gathered together with it.
// InternalError if no parameter has the name of a shared one, if its shape, segments or Param::flat are others, or if
// two parameters that are not shared have one name.
std::vector<ParamIndex> add_unit(const std::string& name, const UnitId& place, const std::vector<Param>& params,
                                 const FlatSpecOf& spec_of, std::vector<Unit>& units, std::vector<Flat>& flats);

}  // namespace hawser::nn
