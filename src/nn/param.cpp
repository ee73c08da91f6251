#include "nn/param.h"

#include "base/units.h"

namespace hawser::nn {

Param full_param(const std::string& name, const Shape& shape, Initial initial, bool decay) {
  return {.name = name, .shape = shape, .initial = initial, .decay = decay, .slices = {{name, 0, shape[0]}}};
}

Param fused_param(const std::string& name, const std::vector<FusedSlice>& slices, const Shape& shape, Initial initial,
                  bool decay) {
  std::int64_t row = 0;
  for (const FusedSlice& slice : slices) {
    HAWSER_CHECK(slice.row == row, name, ": slice ", slice.name, " starts at row ", slice.row);
    row += slice.rows;
  }
  HAWSER_CHECK(row == shape[0], name, ": slices of ", row, " rows in ", shape.text());
  return {.name = name, .shape = shape, .initial = initial, .decay = decay, .slices = slices};
}

Shape slice_shape(const Param& param, const FusedSlice& slice) {
  Shape shape = param.shape;
  shape[0] = slice.rows;
  return shape;
}

Unit::Unit(std::string name, std::vector<Param> params) : name_(std::move(name)), params_(std::move(params)) {
  for (const Param& param : params_) {
    offsets_.push_back(used_);
    used_ += round_up(param.elements(), kAlignmentElements);
  }
}

std::int64_t Unit::total(int parts) const {
  return round_up(used_, kAlignmentElements * parts);
}

TensorView Unit::view(const TensorView& flat, int param) const {
  const Param& p = params_[static_cast<std::size_t>(param)];
  return flat.rows(offset(param), p.elements()).reshape(p.shape);
}

std::vector<Unit::Gap> Unit::gaps(std::int64_t total) const {
  std::vector<Gap> gaps;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (offsets_[i] > at) gaps.push_back({at, offsets_[i] - at});
    at = offsets_[i] + params_[i].elements();
  }
  if (total > at) gaps.push_back({at, total - at});
  return gaps;
}

}  // namespace hawser::nn
