// `Param`: a parameter as a layer declares it. `Unit`: parameters that are sharded, all-gathered, reduced and updated
// together, as one flat buffer.
#pragma once

#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace hawser::nn {

struct Initial {
  enum class Kind { normal, ones, zeros };
  Kind kind = Kind::zeros;
  double std = 0;  // normal only; mean 0
};

// Rows [row, row + rows) of a parameter: one tensor of a Hugging Face folder. A fused parameter (QKV, gate-up) has
// several slices.
struct FusedSlice {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::int64_t row = 0, rows = 0;
};

struct Param {
  std::string name;  // unique in the model; equal to the slice's name if there is only one
  Shape shape;
  Initial initial;
  bool decay = false;              // weight decay applies (matrices, not norms and biases)
  std::vector<FusedSlice> slices;  // in row order; they cover all rows

  std::int64_t elements() const { return shape.elements(); }
};

// A Param that is one tensor in the Hugging Face folder.
Param full_param(const std::string& name, const Shape& shape, Initial initial, bool decay);
// A Param of several tensors of a Hugging Face folder with the same row length, one after another.
Param fused_param(const std::string& name, const std::vector<FusedSlice>& slices, const Shape& shape, Initial initial,
                  bool decay);
// The unsharded shape of a slice: the parameter's, with the slice's number of rows.
Shape slice_shape(const Param& param, const FusedSlice& slice);

// The parameters of one unit (embedding, a block, head) in one flat buffer. Every parameter starts at a multiple of
// kAlignmentElements elements, and so does every shard. A shard boundary may be inside a parameter.
class Unit {
 public:
  static constexpr std::int64_t kAlignmentElements = 128;

  Unit(std::string name, std::vector<Param> params);

  const std::string& name() const { return name_; }
  const std::vector<Param>& params() const { return params_; }
  std::int64_t offset(int param) const { return offsets_[static_cast<std::size_t>(param)]; }
  // Elements up to the end of the last parameter, rounded up to a multiple of kAlignmentElements.
  std::int64_t used() const { return used_; }
  // Elements of the flat buffer if it is sharded over `parts` ranks: used(), rounded up to a multiple of
  // parts * kAlignmentElements.
  std::int64_t total(int parts) const;
  // The view of a parameter in the unit's unsharded flat buffer.
  TensorView view(const TensorView& flat, int param) const;
  // The elements of a flat buffer of `total` elements between parameters and after the last one. They must stay zero in
  // gradients.
  struct Gap {
    std::int64_t begin, count;
  };
  std::vector<Gap> gaps(std::int64_t total) const;

 private:
  std::string name_;
  std::vector<Param> params_;
  std::vector<std::int64_t> offsets_;
  std::int64_t used_ = 0;
};

}  // namespace hawser::nn
