// `Param`: a parameter as a layer declares it; `Segment`: the slice of a global tensor that it holds; `FlatSpec`: how
// it is stored and sharded.
//
// A global tensor is one of the Hugging Face folder, whatever ranks there are. Example: down_proj [4096, 14336] over
// two tensor ranks, row-parallel. On tensor rank 1 the parameter has the last 7168 columns:
//
//   {.name = "model.layers.0.mlp.down_proj.weight", .shape = {4096, 7168},
//    .segments = {{.name = "model.layers.0.mlp.down_proj.weight", .row = 0, .rows = 4096,
//                  .global = {4096, 14336}, .slice = {.dim = 1, .begin = 7168, .size = 7168}}}}
//
// A fused QKV of 32 heads and 8 key-value heads of 128 channels is one parameter [6144, 4096] with three segments:
// q_proj in rows 0..4095, k_proj in 4096..5119, v_proj in 5120..6143. One GEMM reads it, and files have three tensors.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/domain.h"
#include "base/index_range.h"
#include "tensor/tensor.h"

namespace hawser::nn {

struct Initial {
  enum class Kind { normal, ones, zeros, row_norms };
  Kind kind = Kind::zeros;
  double std = 0;  // normal only; mean 0
  // row_norms only: the name of a matrix among the model's global tensors (Segment::name). Element i is the norm of its
  // row i, as the weights or its own initial values have it.
  std::string rows_of = {};
};

// Indices [begin, begin + size) of one dim of a tensor: what a tensor or expert rank has of it. In DTensor's words the
// tensor is Shard(dim) over these ranks.
struct Slice {
  int dim = 0;
  std::int64_t begin = 0, size = 0;
  bool operator==(const Slice&) const = default;
};

// How a Hugging Face file stores a tensor. Everything else, checkpoints included, has the model's form: rows in the
// model's order, [out, in].
struct FileForm {
  bool transposed = false;  // the file has [in, out] (Conv1D of GPT-2)
  // The model's rows in the order of the file's (its columns if transposed), each once. GPT-NeoX's QKV has the rows of
  // each head together. Without ranges the order is the same.
  std::vector<IndexRange> row_order;
  bool operator==(const FileForm&) const = default;
};

// Rows [row, row + rows) of a parameter: a slice of one global tensor, which is the same on every rank. A fused
// parameter (QKV, gate-up) has several segments.
struct Segment {
  std::string name;  // of the global tensor, as in the Hugging Face folder: "model.layers.0.self_attn.q_proj.weight"
  std::int64_t row = 0, rows = 0;
  // The shape of the global tensor, in the model's form. It may have no dims as an argument of fused_param(), and then
  // becomes that of just these rows. It may have more dims than the parameter: its leading dims are then flattened into
  // rows (experts' weights [E, out, in] in a parameter [E * out, in]).
  Shape global = {};
  std::optional<Slice> slice = {};  // what these rows are of the global tensor; absent: all of it (Replicate)
  FileForm file = {};
  // Rows of `global` that are a matrix of their own where elements share a value (nn/granularity.h), and where an
  // optimizer needs complete matrices: q, k or v of a fused QKV, on one rank, too. The slice is all of them or a part.
  // Absent: the tensor has no ranges.
  std::optional<IndexRange> range = {};
  bool may_be_absent = false;  // weights without it are complete: it then starts with its initial values
  bool operator==(const Segment&) const = default;
};

// The segments of a parameter. Copies share one list: a layer and its flat have the same parameters, and a thousand
// blocks of experts have hundreds of thousands of segments.
class Segments {
 public:
  Segments() = default;
  Segments(std::vector<Segment> list) : list_(std::make_shared<std::vector<Segment>>(std::move(list))) {}
  Segments(std::initializer_list<Segment> list) : Segments(std::vector<Segment>(list)) {}

  std::size_t size() const { return list().size(); }
  bool empty() const { return list().empty(); }
  const Segment& operator[](std::size_t i) const { return list()[i]; }
  const Segment& front() const { return list().front(); }
  std::vector<Segment>::const_iterator begin() const { return list().begin(); }
  std::vector<Segment>::const_iterator end() const { return list().end(); }
  // The list, to be changed; copies of this keep theirs.
  std::vector<Segment>& edit();
  bool operator==(const Segments& other) const { return list_ == other.list_ || list() == other.list(); }

 private:
  const std::vector<Segment>& list() const;

  std::shared_ptr<std::vector<Segment>> list_;  // null: no segments
};

// The indices of a dim that a rank's layer has, of `total` in the model: those from `begin` on, as many as the layer's
// own size. By default the layer has all of them. Example: heads 8 to 15 of 32 are {.begin = 8, .total = 32} in a layer
// of 8 heads. Tensor ranks have equal sizes, so that one plan serves them all: of a vocabulary, the last rank's may end
// after total. Its rows from there on are padding (Param::padding).
struct DimSlice {
  std::int64_t begin = 0, total = 0;

  bool sliced() const { return total > 0; }
  // How many of `size` indices are no padding. InternalError if none is.
  std::int64_t real(std::int64_t size) const;
};

// What the parameters of one flat buffer have in common (nn/flat.h).
struct FlatSpec {
  Domain domain = Domain::sliced;
  bool trainable = true;        // false: frozen. No gradient, no moments, no master weights
  std::optional<DType> stored;  // dtype that ranks keep; absent: float32 if trainable, otherwise as gathered
  // Dtype that layers read; absent: the compute dtype. DType::nf4 and nf4_double: frozen weights of Linears and experts
  // only, whose rows in the global tensor are whole blocks.
  std::optional<DType> gathered;
  // Each parameter has a float32 scale for each of its Param::gemm_matrices(), of the global parameter: equal on
  // tensor-parallel ranks, which have slices of it. Weights of Linears and experts only.
  bool scaled = false;
  // Backward reads the matrices with rows and columns exchanged (Scaled::transposed), as GEMMs of FP8 need them, and
  // not as they are. Weights of Linears and experts only.
  bool transposed = false;
  // Gathered as it is, and rounded to FP8 for each GEMM that reads it (Quantizer::quantize_weight). Weights of Linears
  // only, without scales.
  bool quantized_on_use = false;
  int group = 0;  // a number for parameters that the optimizer updates differently, or whose learning
                  // rate has a schedule of its own (optim::kGroups)
  // What the optimizer has for parameters that are not its matrices or blocks: a state of each element in float32.
  // AdamW and SGD have nothing else (plan::with_optimizer).
  bool elementwise = false;
  // True: each tensor rank computes a partial sum of the gradient. False: each rank that has the parameter computes all
  // of it, an equal copy. Always false with Domain::sliced. So over the tensor ranks the gradient is Partial or
  // Replicate (over data ranks it is Partial until it is reduced). The reduction over the ranks that share a flat,
  // which include tensor ranks, adds either; a sum of copies is then divided by their number. Layers set what holds
  // without sequence parallelism; with_sequence_parallelism (nn/flat.h) adds Param::of_residual_rows.
  bool partial_gradient = false;
  std::int64_t grain = 128;  // parameters and shards begin at multiples of it; a multiple of
                             // Flat::kAlignmentElements
  bool operator==(const FlatSpec&) const = default;

  // Blocks of a row's weights in 4 bits (DType::nf4 or nf4_double), each with its scale: stored and gathered so,
  // quantized once as they are loaded, and dequantized where a GEMM reads them.
  bool packed() const { return gathered && is_nf4(*gathered); }
  bool double_quantized() const { return gathered == DType::nf4_double; }
  bool fp8() const { return quantized_on_use || scaled; }  // GEMMs read it quantized
  // The dtypes in a model that computes in `compute`.
  DType gathered_in(DType compute) const { return gathered.value_or(compute); }
  DType stored_in(DType compute) const { return stored.value_or(trainable ? DType::f32 : gathered_in(compute)); }
};

struct Param {
  std::string name;  // of one parameter of the model; equal to the segment's name if there is only one
  Shape shape;       // on this rank
  Initial initial;
  bool decay = false;  // weight decay applies (matrices, not norms and biases)
  Segments segments;   // in row order; they cover all rows but the padding. Every Segment::global has dims
  // Rows after those of the segments. They are zero in weights, gradients and the optimizer's state, and in no
  // checkpoint.
  std::int64_t padding = 0;
  FlatSpec flat = {};  // what the layer asks for
  // The weight of a Linear, or of experts, whose operands may be quantized (SavePolicy::formats).
  bool of_linear = false;
  // With of_linear: the modules of that Linear, "model.layers.0.self_attn.q_proj", the same list in
  // each of its weights and on each rank, also where a weight's own segments are only some of them. "{}" is
  // the number of an expert, of `experts`. Empty: those of the segments.
  std::vector<std::string> modules = {};
  std::int64_t experts = 0;
  // Elements of the smallest global tensor of `modules` where others of them are in another parameter; 0: none are.
  std::int64_t smallest = 0;
  // Of experts: its rows are this many equal parts, each a matrix that GEMMs read, which begins with a segment. 0: it
  // is not divided.
  std::int64_t matrices = 0;
  // The embedding or a layer before this one declares the parameter of this name, and this layer uses it, too
  // (nn/flat.h).
  bool shared = false;
  // Its gradient is a sum over the residual's rows (RowCounts::residual): with sequence parallelism, each tensor rank
  // has a part of it.
  bool of_residual_rows = false;
  // FlatSpec::packed, of a slice whose columns begin or end within a block: the columns that the layer reads. The shape
  // and the segments then have whole blocks (with_whole_blocks). Absent: it reads all columns.
  std::optional<IndexRange> read_columns = {};

  std::int64_t elements() const { return shape.elements(); }
  std::int64_t gemm_matrices() const { return matrices > 0 ? matrices : 1; }
};

// A Param that is one global tensor.
Param full_param(const std::string& name, const Shape& shape, Initial initial, bool decay);
// A Param that is one global tensor, with Domain::replicated and without weight decay: a norm, or the bias of a
// row-parallel Linear. Over the tensor ranks it is Replicate.
Param replicated_param(const std::string& name, const Shape& shape, Initial initial);
// A Param that is one global tensor, with Domain::replicated and FlatSpec::partial_gradient: a matrix beside a sliced
// one, such as A of an adapter of a column-parallel Linear. Its gradient is Partial over the tensor ranks.
Param partial_param(const std::string& name, const Shape& shape, Initial initial, bool decay);
// Makes `param`, which is not sliced, that of a Linear which every tensor rank has all of (Linear::sliced).
void set_unsliced(Param& param);
// A Param that has a slice of dim `dim` of one global tensor, Shard(dim) over the tensor ranks; of dim 0, it may have
// padding.
Param sliced_param(const std::string& name, const Shape& shape, int dim, DimSlice slice, Initial initial, bool decay);
// `param` with the columns of the blocks that its slice of dim 1 has a part of: neighbours then have some of them, too.
// The shape is equal on all tensor ranks. Example: of 320 columns over two ranks, each has 160 and reads columns
// [0, 160) of 192, or [32, 192) of those from 128 on. Unchanged if no block is cut, or if the tensor has no whole blocks.
Param with_whole_blocks(const Param& param);
// A Param of several segments with the same row length, one after another, and rows of padding. Throws InternalError
// unless they are all its rows, and each segment has the shape of its slice, leading dims flattened.
Param fused_param(const std::string& name, std::vector<Segment> segments, const Shape& shape, Initial initial,
                  bool decay, std::int64_t padding = 0);
// A Segment that has part of the rows of a global tensor [rows of `slice`, the other dims of `shape`].
Segment row_segment(const std::string& name, std::int64_t row, std::int64_t rows, const Shape& shape, DimSlice slice,
                    std::optional<IndexRange> range = {});
// The shape of a segment on this rank: Segment::global, with the slice's extent.
Shape segment_shape(const Segment& segment);
// The shape that the file has: Segment::global, with its dims swapped if FileForm::transposed.
Shape file_shape(const Segment& segment);

// What counts as a tensor where elements share a value: Segment::range, or all of Segment::global. The slice is
// Segment::slice, with indices from the range's first row on. The name: the tensor's, of a range "NAME[first row:end]".
Shape range_shape(const Segment& segment);
std::optional<Slice> range_slice(const Segment& segment);
std::string range_name(const Segment& segment);
// Whether this rank has only a part of it.
bool is_sliced(const Segment& segment);

}  // namespace hawser::nn
