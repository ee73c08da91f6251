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

// Indices [begin, begin + extent) of one dim of a tensor; extent 0: the whole tensor.
struct Slice {
  int dim = 0;
  std::int64_t begin = 0, extent = 0;
};

// How a Hugging Face file stores a tensor. Everything else, checkpoints included, has the model's form: rows in the
// model's order, [out, in].
struct FileForm {
  struct Rows {
    std::int64_t row = 0, rows = 0;
    bool operator==(const Rows&) const = default;
  };
  bool transposed = false;      // the file has [in, out] (Conv1D of GPT-2)
  std::vector<Rows> row_order;  // the model's rows in the order of the file's (its columns if transposed), each once;
                                // empty: the same order. GPT-NeoX's QKV has the rows of each head together
  bool operator==(const FileForm&) const = default;
};

// Rows [row, row + rows) of a parameter: a slice of one global tensor, which is the same on every rank. A fused
// parameter (QKV, gate-up) has several segments.
struct Segment {
  std::string name;  // of the global tensor, as in the Hugging Face folder: "model.layers.0.self_attn.q_proj.weight"
  std::int64_t row = 0, rows = 0;
  Shape global = {};  // of the global tensor, in the model's form; no dims: it has just these rows
  Slice slice = {};   // the part of the global tensor that these rows are
  FileForm file = {};
};

// The part of a global extent that a rank's layer has: [begin, begin + its own extent) of total; total 0: all.
struct PartOf {
  std::int64_t begin = 0, total = 0;
};

struct Param {
  std::string name;  // unique in the model; equal to the segment's name if there is only one
  Shape shape;       // on this rank
  Initial initial;
  bool decay = false;             // weight decay applies (matrices, not norms and biases)
  std::vector<Segment> segments;  // in row order; they cover all rows. Every Segment::global has dims

  std::int64_t elements() const { return shape.elements(); }
};

// A Param that is one global tensor.
Param full_param(const std::string& name, const Shape& shape, Initial initial, bool decay);
// A Param that is part of dim `dim` of one global tensor.
Param sliced_param(const std::string& name, const Shape& shape, int dim, PartOf part, Initial initial, bool decay);
// A Param of several segments with the same row length, one after another. Throws InternalError unless they cover its
// rows, and each has the shape of its slice.
Param fused_param(const std::string& name, std::vector<Segment> segments, const Shape& shape, Initial initial,
                  bool decay);
// A Segment that has part of the rows of a global tensor [rows of `part`, the other dims of `shape`].
Segment row_segment(const std::string& name, std::int64_t row, std::int64_t rows, const Shape& shape, PartOf part);
// The shape of a segment on this rank: the parameter's, with the segment's number of rows.
Shape segment_shape(const Param& param, const Segment& segment);
// The shape that the file has: Segment::global, with its dims swapped if FileForm::transposed.
Shape file_shape(const Segment& segment);

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
