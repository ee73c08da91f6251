// `Param`: a parameter as a layer declares it. `Unit`: the flat buffer that is gathered, reduced and updated at once.
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

// A range of rows of a parameter that is a separate tensor in a Hugging Face folder.
struct Segment {
  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::int64_t row = 0, rows = 0;
};

struct Param {
  std::string name;  // unique in the model; the segment's name if there is one segment
  Shape shape;
  Initial initial;
  bool decay = false;  // weight decay applies (matrices, not norms and biases)
  std::vector<Segment> segments;

  std::int64_t elements() const { return shape.elements(); }
};

// A Param that is one tensor in the Hugging Face folder.
Param full_param(const std::string& name, const Shape& shape, Initial initial, bool decay);
// A Param of several tensors with the same row length, one after another.
Param fused_param(const std::string& name, const std::vector<Segment>& segments, const Shape& shape, Initial initial,
                  bool decay);
// The global shape of a segment: the parameter's, with the segment's rows.
Shape segment_shape(const Param& param, const Segment& segment);

// The parameters of one unit (embedding, a block, head) in one flat buffer. Every parameter starts at a multiple of
// kGrain elements, so that a shard boundary may be inside a parameter but never inside a grain.
class Unit {
 public:
  static constexpr std::int64_t kGrain = 128;

  Unit(std::string name, std::vector<Param> params);

  const std::string& name() const { return name_; }
  const std::vector<Param>& params() const { return params_; }
  std::int64_t offset(int param) const { return offsets_[static_cast<std::size_t>(param)]; }
  std::int64_t used() const { return used_; }  // elements up to the end of the last parameter, rounded up to the grain
  std::int64_t total(int parts) const;         // used(), padded to a multiple of parts * kGrain
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
