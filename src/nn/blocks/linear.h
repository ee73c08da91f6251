// `Linear`: y = x W^T + b, with W [out, in] and b [out] of a layer's parameters, its adapters, and its gradients.
// `ColumnParallelLinear`, `RowParallelLinear`: a Linear that ranks share; the two differ in what these ranks exchange
// (names as in Megatron-LM). A column-parallel Linear gathers its input (nn::Redistribute), a row-parallel one sums its
// output, so that its bias is added after the sum over ranks.
//
// Example: an MLP of width 4096 and inner width 14,336 over two tensor ranks, 8,192 tokens. The up projection is
// column-parallel: its W on each rank is [7168, 4096], x [8192, 4096] gives y [8192, 7168]. The down projection is
// row-parallel: W [4096, 7168], x [8192, 7168] gives a partial y [8192, 4096] on each rank, and the seam adds the two.
//
// x [T, in], y [T, out] and their gradients. y and dx are in LayerContext::dtype(), also if the weight is quantized, or
// in float32 if its FlatSpec has `gathered` float32 and no scales (a router); adapters need LayerContext::dtype(). x
// and dy are in the same dtype as y and dx, unless they have a scale: then they are in FP8, and the GEMMs read the
// scale:
//   y = (s_x s_W) (x W^T) + b      dx = (s_dy s_W) (dy W)      dW (+)= (s_dy s_x) (dy^T x)      db (+)= s_dy sum(dy)
// A GEMM reads Scaled::transposed where that saves it a transpose: W in dx, dy and x in dW. If the site has a format
// (LayerContext::quantization), an x or a dy without a scale is quantized for the GEMMs with W, after ranks have
// redistributed it. x is quantized in forward and again in dW, dy in dx and again in dW. A caller may do it once for
// both (`quantized`). With Redistribute::gathers_quantized() each rank rounds its own rows before they are
// redistributed. Forward records the amax of x, and dx that of dy. With LinearFormat::fp8_current and fp8_block, the
// scales of a rank are those of its own rows. With fp8_block, W is rounded, too (Quantizer::quantize_weight), and a
// matrix has a scale for each block: terms of the sums have their own (ops/gemm/gemm.h). Pieces of rows have the scales
// of their rows; dW, whose blocks have 128 rows, reads all rows. Adapters and bias gradients read the x and dy that
// they are given. A weight in NF4 (FlatSpec::packed) is dequantized to LayerContext::dtype() for each GEMM that reads
// it; adapters with a magnitude cannot read one. A scale of an x or a dy that ranks redistribute is one float32, equal
// on all of them. A Linear's own work is enqueued on the compute stream; the Redistribute seam of the two that ranks
// share may use the exchange stream, too. Errors: those of ops::gemm, ops::bias_gradient and ops::dropout.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

// A low-rank adapter of rows [first_output, first_output + outputs) of W (LoRA, arXiv 2106.09685):
//   y[:, those rows] += scale * dropout(x) A^T B^T        A [rank, in], B [outputs, rank]
// With a magnitude m [outputs] (DoRA, arXiv 2402.09353), float32 or LayerContext::dtype():
//   y[:, those rows] += dropout(x) (f * (W + scale B A) - W)^T,   f = m / norms of the rows of W + scale B A
// so that without dropout y = x (f * (W + scale B A))^T + b. Gradients treat the norms as constants. dA and dB of the
// product B A, and dm, are of this formula; PEFT computes the same (with one adapter; of several, it applies the second
// to the output of the first, and here their terms are added). W has no scale. A row-parallel Linear sums the squares
// of its norms with TensorReduce (nn/seams/tensor_reduce.h).
struct Adapter {
  int a = -1, b = -1, magnitude = -1;  // parameters of the layer. The magnitude is -1 if there is none.
  std::int64_t rank = 0, first_output = 0, outputs = 0;
  std::int64_t a_row = 0;  // A is rows [a_row, a_row + rank) of its parameter
  double scale = 1, dropout = 0;
};
// Adapters may have the same A, `a` and `a_row`: together they are one adapter whose B, and magnitude, are several
// parameters, each for rows of its own. They have one dropout(x).

// What the passes of a Linear with adapters share, so that it is computed once: matrices [T, R], R the ranks of a group
// (add_adapters), one after another in a tensor [Linear::adapter_ranks(), T]. A function that needs an empty one
// computes it.
struct AdapterTensors {
  TensorView inner;           // scale * dropout(x) A^T of all adapters
  TensorView inner_gradient;  // the gradients of their dropout(x) A^T
};

struct Linear {
  Site site = Site::logits;  // keys its random numbers
  int weight = -1;           // parameters of the layer
  int bias = -1;             // likewise. It is -1 without a bias.
  // If they are not -1, W and b are two parameters each: these have the rows after those of `weight` and `bias`.
  int more_weight = -1, more_bias = -1;
  std::vector<Adapter> adapters = {};
  std::int64_t first_input = 0;  // the column of x[:, 0] in the whole input, if x is a slice of it
  bool sums_inputs = false;      // row-parallel: the ranks' inputs are slices, and W has only their columns
  // W is the slice of a tensor rank: the two parallel Linears exchange rows. false: each tensor rank has all of W. They
  // then exchange nothing and compute the residual's rows; with sequence parallelism, a rank's gradients are parts of
  // sums (set_unsliced).
  bool sliced = true;

  // The rows of y.
  std::int64_t rows(const RowCounts& counts) const { return sliced ? counts.full : counts.residual; }
  // Index of their first among the full rows.
  std::int64_t begin(const RowCounts& counts) const { return sliced ? 0 : counts.first; }

  // y = x W^T + b + the adapters' terms. Writes AdapterTensors::inner, if it is not empty. Terms that fill y are
  // written before the GEMM with W, which adds to them in float32; others are added after it.
  //
  // x, y, dy and dx of these functions may be some rows: first_row and those after it. AdapterTensors have all rows.
  void forward(LayerContext&, const Scaled& x, const TensorView& y, const TensorView& inner = {},
               std::int64_t first_row = 0) const;
  // AdapterTensors::inner_gradient for all of its rows, a temporary with undefined contents; empty if
  // adapter_ranks() is 0.
  TensorView make_inner_gradient(LayerContext&) const;
  // Writes it.
  void adapter_gradient(LayerContext&, const Scaled& dy, const TensorView& inner_gradient,
                        std::int64_t first_row = 0) const;
  // dx = dy W + the adapters' terms, which are written first, as in forward. `rounded`: dy as the GEMM reads it
  // (`quantized`). If it is empty, dy is rounded here.
  void input_gradient(LayerContext&, const Scaled& dy, const TensorView& dx, const TensorView& inner_gradient = {},
                      std::int64_t first_row = 0, const Scaled& rounded = {}) const;
  // dW (+)= dy^T x, db (+)= column sums of dy, dA, dB; all rows of dy, and of x as in forward, or empty unless
  // reads_input(). Computes only what the sink wants. `rounded` as in input_gradient.
  void weight_gradient(LayerContext&, const Scaled& dy, const Scaled& x, GradientSink&,
                       const AdapterTensors& adapter_tensors = {}, const Scaled& rounded = {}) const;
  // x or dy as GEMMs read it: the GEMM with W (product), that of the gradient of W, which reads it transposed, or both.
  // It is quantized if the site has a format and it has no scale yet. The amax is recorded if W's GEMM reads it and
  // this pass records it.
  enum class ReadBy { product, weight_gradient, both };
  Scaled quantized(LayerContext&, Operand operand, const Scaled& matrix, ReadBy reader,
                   std::int64_t first_row = 0) const;
  // A parameter of W as a GEMM reads it, or as that of dx does, transposed.
  Scaled weight_for(LayerContext&, int parameter, bool transposed) const;
  // dy [T, out] rounded once for both gradients, if they read the same; else empty, and each rounds it.
  Scaled rounded_once(LayerContext&, const Scaled& dy) const;
  // weight_gradient computes something; it reads x even if AdapterTensors::inner is given.
  bool has_gradients(const TrainableParams& trainable) const;
  bool reads_input(const TrainableParams& trainable) const;
  bool draws_random_numbers() const;
  // An adapter before this one has the same A.
  bool repeats_a(std::size_t adapter) const;
  // The sum of the ranks of the adapters' A. 0 if one has a magnitude: nothing is shared then.
  std::int64_t adapter_ranks() const;
  // FLOPs of forward for T rows of the adapters alone, if x has `inputs` columns.
  double adapter_flops(std::int64_t rows, std::int64_t inputs) const;
  // Layer::linear_weights of a layer that has this Linear.
  std::vector<int> weights_at(Site place) const;

  // Rows of W; they are in one of its parameters, which has no scale.
  TensorView weight_rows(const LayerContext&, std::int64_t first, std::int64_t rows) const;

 private:
  // Consecutive rows of W and b that are one parameter.
  struct Rows {
    int weight = -1, bias = -1;
    std::int64_t first = 0, count = 0;
  };
  std::vector<Rows> rows_of_weight(const LayerContext&) const;
  // The GEMM of dx reads the columns of each parameter's rows rounded on their own: blocks begin with them, as in W.
  bool rounds_by_part(const LayerContext&) const;
  // The indices of the adapters, those whose A are one parameter together, in the order of their first.
  std::vector<std::vector<std::size_t>> adapter_groups() const;
  // By adapter: it adds to columns of y that one before it, in the order of the groups, has written. Empty if the
  // adapters do not fill y, of `outputs` columns, or one has a magnitude.
  std::vector<bool> adding_adapters(std::int64_t outputs) const;
  // The adapters' terms but those that multiply. Each is added to y; where `adding` is false for it, it is written.
  // Each is added to dx; if no adapter has a magnitude, the first is written.
  void add_terms(LayerContext&, const Scaled& x, const TensorView& y, const TensorView& inner, std::int64_t first_row,
                 const std::vector<bool>& adding) const;
  void add_input_terms(LayerContext&, const Scaled& dy, const Scaled& of_product, const TensorView& dx,
                       const TensorView& inner_gradient, std::int64_t first_row) const;
  // Adapters with a magnitude that multiply the output of W in place. The others add terms of their own: those that
  // drop, and those of rows that an earlier adapter multiplies.
  std::vector<bool> multiplying_adapters(const LayerContext&) const;
  // dy as the gradient of W reads it beside an x that is rounded.
  Scaled gradient_beside(LayerContext&, const Scaled& x, const Scaled& dy, const Scaled& rounded) const;
  // dy with the columns of multiplying adapters times f: the gradient of x W^T.
  Scaled product_gradient(LayerContext&, const Scaled& dy) const;
};

// `how` for a reader of x or dy: which forms it reads, and what is recorded.
Quantization reading(Quantization how, Linear::ReadBy reader);

// A Linear whose outputs are sliced over the tensor ranks. x, dx [RowCounts::residual, in]; y, dy [Linear::rows, out].
class ColumnParallelLinear {
 public:
  explicit ColumnParallelLinear(Linear linear) : linear_(std::move(linear)) {}
  const Linear& linear() const { return linear_; }
  void forward(LayerContext&, const Scaled& x, const TensorView& y, const TensorView& inner = {}) const;
  // input_gradient and weight_gradient, in the order of Redistribute::overlaps(); dy is rounded once for both.
  void backward(LayerContext&, const Scaled& dy, const Scaled& x, const TensorView& dx, GradientSink&,
                const AdapterTensors& adapter_tensors) const;
  // Writes dx, the sum of the ranks' parts.
  void input_gradient(LayerContext&, const Scaled& dy, const TensorView& dx, const TensorView& inner_gradient,
                      const Scaled& rounded = {}) const;
  void weight_gradient(LayerContext&, const Scaled& dy, const Scaled& x, GradientSink&,
                       const AdapterTensors& adapter_tensors = {}, const Scaled& rounded = {}) const;

 private:
  Linear linear_;
};

// A Linear whose inputs are sliced over the tensor ranks. x, dx [Linear::rows, in]; residual, y, dy
// [RowCounts::residual, out].
class RowParallelLinear {
 public:
  // What the gradients of weights read: dy [Linear::rows, out] and AdapterTensors::inner_gradient.
  struct OutputGradient {
    Scaled dy;
    TensorView inner_gradient;
    Scaled rounded;  // Linear::rounded_once
  };

  explicit RowParallelLinear(Linear linear);
  const Linear& linear() const { return linear_; }
  // y = residual + Linear(x); without a `residual` y = Linear(x), for a norm before the sum
  void forward(LayerContext&, const Scaled& x, const TensorView& residual, const TensorView& y,
               const TensorView& inner = {}) const;
  // Writes dx, if it is not empty. `delayed`: the gradients of weights are computed in another pass.
  OutputGradient input_gradient(LayerContext&, const Scaled& dy, const TensorView& dx, bool delayed) const;

 private:
  Linear linear_;
};

// What a layer's configuration says of an adapter. Its parameters are TARGET.lora_A.weight and TARGET.lora_B.weight,
// and with `magnitude` TARGET.lora_magnitude_vector; those of an adapter with a name TARGET.lora_A.NAME.weight,
// TARGET.lora_B.NAME.weight and TARGET.lora_magnitude_vector.NAME.weight, as in PEFT's modules.
struct AdapterConfig {
  std::string target;  // name of the Linear as in the Hugging Face folder, without ".weight"
  std::int64_t rank = 0;
  double scale = 1;  // lora_alpha / rank, or lora_alpha / sqrt(rank) (rsLoRA, arXiv 2312.03732)
  double dropout = 0;
  bool magnitude = false;  // DoRA
  std::string name = {};   // adapters of one target have different names
};

struct AdapterNames {
  std::string a, b, magnitude;
};
AdapterNames adapter_names(const AdapterConfig& config);

// Rows [first_output, first_output + outputs) of a Linear's weight.
struct OutputRange {
  std::int64_t first_output = 0, outputs = 0;
  DimSlice slice = {};                   // column-parallel: they are this slice of the rows of a name
  bool kv_copies = false;                // which several tensor ranks have (Domain::kv_copies)
  std::optional<IndexRange> range = {};  // Segment::range
};

// The rows of a Linear's weight that one name of the Hugging Face folder has.
struct AdapterTarget {
  std::string name;
  // One after another. Several are q, k and v of a fused tensor: each then has a `slice`.
  std::vector<OutputRange> ranges;
  std::vector<IndexRange> row_order = {};  // of all rows of the name
};

// Appends to `params` the parameters of the configured adapters of `targets`, in the order of the targets, and returns
// the adapters. There is one for each config. If some of a target's ranges are kv_copies and others are not, there is
// one for each run of equal ranges, and these have one A. `slice`: of a row-parallel Linear, what the inputs are of all
// inputs. A starts with N(0, 1 / (3 all inputs)), the variance of PEFT's; B with zeros; a magnitude with the norms of
// the rows of W, and it is gathered in float32, so that f is then 1. Adapters of a column-parallel Linear without
// dropout and magnitude that have equal ranks, scales and names are a group: their A are one fused parameter, so that
// one GEMM computes all x A^T, and another adds to dx. Weights without adapters are complete (Segment::may_be_absent).
// Experts' weights are no Linears and have no adapters. InternalError if two adapters have the same names.
std::vector<Adapter> add_adapters(const std::vector<AdapterConfig>& configs, const std::vector<AdapterTarget>& targets,
                                  std::int64_t inputs, DimSlice slice, std::vector<Param>& params);

}  // namespace hawser::nn
