#include "nn/flat.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/units.h"
#include "nn/granularity.h"

namespace hawser::nn {

Flat::Flat(std::string name, FlatSpec spec, std::vector<Param> params)
    : name_(std::move(name)), spec_(spec), params_(std::move(params)) {
  HAWSER_CHECK(spec.grain > 0 && spec.grain % kAlignmentElements == 0, name_, ": a grain of ", spec.grain);
  HAWSER_CHECK(!spec.partial_gradient || spec.domain != Domain::sliced, name_, ": partial gradients of a ",
               to_string(spec.domain), " flat");
  HAWSER_CHECK(!spec.quantized_on_use || (!spec.scaled && !spec.transposed), name_,
               ": quantized where it is read, but with scales or transposed");
  static_assert(kAlignmentElements % kNf4Block == 0);
  HAWSER_CHECK(!spec.packed() || (!spec.trainable && (!spec.stored || spec.stored == spec.gathered) && !spec.fp8() &&
                                  !spec.transposed),
               name_, ": NF4 weights that train, or in another format, too");
  for (const Param& param : params_) {
    HAWSER_CHECK(!spec.packed() || (param.of_linear && param.shape.rank() == 2 && param.shape[1] % kNf4Block == 0),
                 param.name, " ", param.shape.text(), ": NF4, but no weight of a Linear with rows of whole blocks of ",
                 kNf4Block);
    HAWSER_CHECK(!spec.transposed || param.shape.rank() == 2, param.name, ": transposed, but no matrix");
    HAWSER_CHECK(param.matrices == 0 || (param.shape.rank() == 2 && param.padding == 0 && param.matrices > 0 &&
                                         param.shape[0] % param.matrices == 0),
                 param.name, " ", param.shape.text(), ": ", param.matrices, " matrices");
    offsets_.push_back(used_);
    used_ += round_up(param.elements(), spec.grain);
    scale_offsets_.push_back(scale_offsets_.back() + (spec.scaled ? param.gemm_matrices() : 0));
  }
}

TensorView Flat::scale_view(const TensorView& scales, int param) const {
  if (!spec_.scaled) return {};
  return scales.rows(scale_offset(param), params_[static_cast<std::size_t>(param)].gemm_matrices());
}

TensorView Flat::transposed_view(const TensorView& flat, int param) const {
  const Param& p = params_[static_cast<std::size_t>(param)];
  return flat.rows(offset(param), p.elements())
      .reshape({p.gemm_matrices() * p.shape[1], p.shape[0] / p.gemm_matrices()});
}

std::int64_t Flat::total(int parts) const {
  return round_up(used_, spec_.grain * parts);
}

TensorView Flat::view(const TensorView& flat, int param) const {
  const Param& p = params_[static_cast<std::size_t>(param)];
  Shape shape = p.shape;
  const std::int64_t values = values_per_element(flat.dtype());
  if (values > 1) shape[shape.rank() - 1] /= values;
  return flat.rows(offset(param) / values, shape.elements()).reshape(shape);
}

std::vector<IndexRange> Flat::gaps(std::int64_t total) const {
  std::vector<IndexRange> gaps;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (offsets_[i] > at) gaps.push_back({at, offsets_[i] - at});
    at = offsets_[i] + params_[i].elements();
  }
  if (total > at) gaps.push_back({at, total - at});
  return gaps;
}

namespace {

// What `spec` has and `first` has not: ", frozen".
std::string difference(const FlatSpec& spec, const FlatSpec& first) {
  std::string text;
  if (spec.domain != first.domain) text += cat(", ", to_string(spec.domain));
  if (spec.trainable != first.trainable) text += spec.trainable ? ", trainable" : ", frozen";
  const auto dtype = [&](const char* name, const std::optional<DType>& own, const std::optional<DType>& other) {
    if (own != other) text += cat(", ", name, " ", own ? hawser::to_string(*own) : "as usual");
  };
  dtype("stored", spec.stored, first.stored);
  dtype("gathered", spec.gathered, first.gathered);
  if (spec.scaled != first.scaled) text += spec.scaled ? ", scaled" : ", without scales";
  if (spec.quantized_on_use != first.quantized_on_use) text += spec.quantized_on_use ? ", FP8" : ", not FP8";
  if (spec.transposed != first.transposed) text += spec.transposed ? ", transposed" : ", not transposed";
  if (spec.elementwise != first.elementwise) text += spec.elementwise ? ", elementwise" : ", not elementwise";
  if (spec.group != first.group) text += cat(", group ", spec.group);
  if (spec.partial_gradient != first.partial_gradient) {
    text += spec.partial_gradient ? ", partial gradients" : ", equal gradients";
  }
  if (spec.grain != first.grain) text += cat(", grain ", spec.grain);
  return text;
}

}  // namespace

FlatSpec common_domain(const Param& param) {
  FlatSpec spec = param.flat;
  spec.domain = Domain::sliced;
  spec.partial_gradient = false;
  return spec;
}

FlatSpecOf with_sequence_parallelism(FlatSpecOf spec_of) {
  return FlatSpecOf([of = std::move(spec_of)](const Param& param, const UnitId& place) {
    FlatSpec spec = of(param, place);
    if (param.of_residual_rows) spec.partial_gradient = true;
    return spec;
  });
}

namespace {

// `spec_of` with `change` to the specs of the weights of Linears and experts in these blocks.
FlatSpecOf with_changed_weights(FlatSpecOf spec_of, std::function<bool(int)> in_block,
                                std::function<void(FlatSpec&)> change) {
  return FlatSpecOf([of = std::move(spec_of), in_block = std::move(in_block), change = std::move(change)](
                        const Param& param, const UnitId& place) {
    FlatSpec spec = of(param, place);
    if (param.of_linear && place.kind == UnitId::Kind::block && in_block(place.block)) change(spec);
    return spec;
  });
}

}  // namespace

FlatSpecOf with_fp8_weights(FlatSpecOf spec_of, std::function<bool(int)> in_fp8) {
  return with_changed_weights(std::move(spec_of), std::move(in_fp8), [](FlatSpec& spec) {
    spec.gathered = DType::f8e4m3;
    spec.scaled = true;
    spec.transposed = true;
  });
}

FlatSpecOf with_nf4_weights(FlatSpecOf spec_of, std::function<bool(int)> in_nf4, DType form) {
  HAWSER_CHECK(is_nf4(form), "NF4 as ", hawser::to_string(form));
  return with_changed_weights(std::move(spec_of), std::move(in_nf4), [form](FlatSpec& spec) {
    if (!spec.trainable) spec.gathered = form;
  });
}

FlatSpecOf with_weights_quantized_on_use(FlatSpecOf spec_of, std::function<bool(int)> in_fp8) {
  return with_changed_weights(std::move(spec_of), std::move(in_fp8),
                              [](FlatSpec& spec) { spec.quantized_on_use = true; });
}

namespace {

// The parameters of a model so far, by name.
class Declared {
 public:
  explicit Declared(const std::vector<Flat>& flats) {
    for (std::size_t flat = 0; flat < flats.size(); ++flat) {
      for (std::size_t i = 0; i < flats[flat].params().size(); ++i) {
        add(flats[flat].params()[i], {static_cast<int>(flat), static_cast<int>(i)});
      }
    }
  }
  // `param` outlives this.
  void add(const Param& param, ParamIndex place) {
    const bool added = known_.emplace(param.name, Known{&param, place}).second;
    HAWSER_CHECK(added, param.name, ": two parameters with one name");
  }
  ParamIndex place_of(const Param& shared) const {
    const auto found = known_.find(shared.name);
    HAWSER_CHECK(found != known_.end(), shared.name, ": shared, but no layer before declares it");
    const Param& param = *found->second.param;
    HAWSER_CHECK(param.shape == shared.shape && param.segments == shared.segments && param.padding == shared.padding &&
                     param.flat == shared.flat,
                 shared.name, ": shared as ", shared.shape.text(), ", but declared as ", param.shape.text(),
                 " or with other segments or another spec");
    return found->second.place;
  }

 private:
  struct Known {
    const Param* param = nullptr;
    ParamIndex place;
  };
  std::unordered_map<std::string_view, Known> known_;
};

}  // namespace

std::vector<ParamIndex> add_unit(const std::string& name, const UnitId& place, const std::vector<Param>& params,
                                 const FlatSpecOf& spec_of, std::vector<Unit>& units, std::vector<Flat>& flats) {
  struct Group {
    FlatSpec spec;
    std::vector<Param> params;
  };
  std::vector<Group> groups;
  std::vector<ParamIndex> places;
  Declared declared(flats);
  for (const Param& param : params) {
    if (param.shared) {
      places.push_back(declared.place_of(param));
      continue;
    }
    const FlatSpec spec = spec_of(param, place);
    auto group = std::ranges::find(groups, spec, &Group::spec);
    if (group == groups.end()) group = groups.insert(group, {spec, {}});
    places.push_back({static_cast<int>(flats.size()) + static_cast<int>(group - groups.begin()),
                      static_cast<int>(group->params.size())});
    group->params.push_back(spec.packed() ? with_whole_blocks(param) : param);
    declared.add(param, places.back());
  }
  Unit unit{.name = name, .flats = {}};
  for (Group& group : groups) {
    unit.flats.push_back(static_cast<int>(flats.size()));
    flats.emplace_back(name + difference(group.spec, groups.front().spec), group.spec, std::move(group.params));
  }
  units.push_back(std::move(unit));
  return places;
}

}  // namespace hawser::nn
