// `Norm`: the norm of a layer, by its parameters' indices among the layer's. Formulas and errors: ops/norm/rms_norm.h,
// ops/norm/layer_norm.h. x, y and their gradients [T, C] in LayerContext::dtype(); statistics float32 [statistics(T)]:
// what backward reads besides x. RMS norms also take heads of wider matrices: x and the like [T, H, D], statistics
// [T, H]. Everything is enqueued on the compute stream.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

enum class NormKind { rms, layer };

struct NormConfig {
  NormKind kind = NormKind::rms;
  double epsilon = 1e-5;
  bool bias = false;         // layer norm only
  bool unit_offset = false;  // the factor is 1 + weight (Gemma); RMS norm only
  bool operator==(const NormConfig&) const = default;
};

// Where a layer f has its norms. Attention and MLPs have all places, experts `pre` alone.
enum class NormPlace {
  pre,       // residual + f(norm(x))
  post,      // norm(residual + f(x)) (BERT)
  sandwich,  // residual + post_norm(f(norm(x))) (Gemma 2)
};

class Norm {
 public:
  // `bias`: ignored without NormConfig::bias. Throws InternalError if an RMS norm has a bias, or a layer norm a unit
  // offset.
  Norm(NormConfig config, int weight, int bias);
  Shape statistics(std::int64_t rows) const;
  // `fp8`: in place of y, which is then empty; only if writes_fp8().
  void forward(LayerContext&, const TensorView& x, const TensorView& y, const TensorView& statistics,
               const ops::Fp8Output& fp8 = {}) const;
  // `saved`, the y that forward wrote, or if it is empty y once more, in a temporary.
  TensorView again(LayerContext&, const TensorView& x, const TensorView& statistics, const TensorView& saved) const;
  bool writes_fp8() const { return config_.kind == NormKind::rms; }
  // dx = residual_gradient + the gradient of x; residual_gradient may be empty.
  void backward(LayerContext&, const TensorView& x, const TensorView& statistics, const TensorView& dy,
                const TensorView& residual_gradient, const TensorView& dx, GradientSink&) const;

 private:
  NormConfig config_;
  int weight_, bias_;
};

// The parameters of a norm [width]: NAME.weight, ones, or zeros with NormConfig::unit_offset; with a bias NAME.bias,
// zeros.
Param norm_weight(const std::string& name, std::int64_t width, const NormConfig& config);
Param norm_bias(const std::string& name, std::int64_t width);

}  // namespace hawser::nn
