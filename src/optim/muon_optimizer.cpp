#include "optim/muon_optimizer.h"

#include <cmath>

#include "nn/segment_ranges.h"
#include "ops/adamw/adamw.h"
#include "ops/muon/muon.h"
#include "optim/elementwise_optimizer.h"
#include "optim/tensor_runs.h"

namespace hawser::optim {

namespace {

constexpr double kScale = 0.2;

// The complete matrices of a segment, one after another in its rows.
struct SegmentMatrices {
  std::int64_t count = 1;
  ops::ExchangedMatrix first;  // the others begin first.rows * first.columns later
};

SegmentMatrices matrices_of(const nn::Segment& segment, std::int64_t begin) {
  using Sliced = ops::ExchangedMatrix::Sliced;
  const Shape complete = nn::range_shape(segment), own = nn::segment_shape(segment);
  const int rank = complete.rank();
  SegmentMatrices out{.first = {.begin = begin, .rows = complete[rank - 2], .columns = complete[rank - 1]}};
  for (int dim = 0; dim < rank - 2; ++dim) out.count *= own[dim];
  const std::optional<nn::Slice> slice = nn::range_slice(segment);
  if (slice && nn::is_sliced(segment) && slice->dim >= rank - 2) {
    out.first.sliced = slice->dim == rank - 2 ? Sliced::rows : Sliced::columns;
    out.first.size = slice->size;
    HAWSER_CHECK(out.count == 1, segment.name, ": several matrices, of which a rank has slices");
  }
  return out;
}

class Muon : public Optimizer {
 public:
  explicit Muon(const MuonSettings& settings)
      : settings_(settings),
        elementwise_(make_elementwise({.beta1 = settings.beta1,
                                       .beta2 = settings.beta2,
                                       .epsilon = settings.epsilon,
                                       .groups = settings.groups})) {}

  std::string name() const override { return "muon"; }
  std::vector<StateSlot> slots(const nn::Flat& flat) const override {
    if (flat.spec().elementwise) return elementwise_->slots(flat);
    return {{"momentum_buffer"}};
  }
  std::vector<Phase> phases(const nn::Flat& flat) const override {
    if (flat.spec().elementwise) return elementwise_->phases(flat);
    return {{.gathers = DType::bf16, .slices = true}, {.scatters = DType::bf16, .slices = true}, {}};
  }
  bool needs_matrices(const nn::Flat& flat) const override { return !flat.spec().elementwise; }
  std::int64_t scalars() const override { return elementwise_->scalars(); }
  void prepare(Stream& stream, const Prepare& p) const override { elementwise_->prepare(stream, p); }

  void update(Stream& stream, const FlatUpdate& u) const override {
    if (u.flat.spec().elementwise) return elementwise_->update(stream, u);
    switch (u.phase) {
      case 0:
        return ops::muon_momentum(stream, {.buffer = u.slots[0],
                                           .gradient = u.gradient,
                                           .coefficient = u.coefficient,
                                           .skip = u.skip,
                                           .sent = u.sent.shard,
                                           .momentum = settings_.momentum,
                                           .nesterov = settings_.nesterov});
      case 1:
        return orthogonalize(stream, u);
      default:
        return apply(stream, u);
    }
  }

 private:
  // Matrices take turns over the ranks that exchange the flat.
  static void orthogonalize(Stream& stream, const FlatUpdate& u) {
    const std::int64_t own = u.exchanged_element(u.begin, u.slice) / u.count, ranks = std::int64_t{u.parts} * u.slices;
    ops::MuonOrthogonalize args{
        .from = u.received.flat, .to = u.sent.flat, .flat = {.count = u.count, .slices = u.slices, .copies = u.copies}};
    std::int64_t number = 0, elements = 1, squares = 1;
    for (const nn::SegmentRange& range : nn::segment_ranges(u.flat, 0, u.count * u.parts)) {
      const SegmentMatrices all = matrices_of(nn::segment_of(u.flat, range), range.at);
      ops::ExchangedMatrix matrix = all.first;
      const std::int64_t n = std::min(matrix.rows, matrix.columns), k = std::max(matrix.rows, matrix.columns);
      elements = std::max(elements, n * k), squares = std::max(squares, n * n);
      const double flops = ops::kMuonIterations * (4.0 * static_cast<double>(k) + 2.0 * static_cast<double>(n)) *
                           static_cast<double>(n) * static_cast<double>(n);
      args.flops += flops * static_cast<double>(all.count) / static_cast<double>(ranks);
      for (std::int64_t m = 0; m < all.count; ++m) {
        if (number++ % ranks == own) args.matrices.push_back(matrix);
        matrix.begin += matrix.rows * matrix.columns;
      }
    }
    // Every rank asks for the same, whichever matrices it has.
    const DType scratch = ops::muon_scratch(stream.target());
    args.x = u.temp(scratch, {elements});
    args.y = u.temp(DType::f32, {elements});
    args.a = u.temp(scratch, {squares});
    args.t = u.temp(DType::f32, {squares});
    ops::muon_orthogonalize(stream, args);
  }

  void apply(Stream& stream, const FlatUpdate& u) const {
    const TensorView rate = u.scalars.rows(settings_.groups.of(u.flat) * ops::kAdamHyperFields, 1);
    const std::vector<nn::SegmentRange> ranges = nn::segment_ranges(u.flat, u.begin, u.count);
    const std::vector<TensorRun> runs = tensor_runs(u, settings_.groups.decay_of(u.flat));
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const TensorRun& run = runs[i];
      const ops::ExchangedMatrix matrix = matrices_of(nn::segment_of(u.flat, ranges[i]), 0).first;
      const double side = static_cast<double>(std::max(matrix.rows, matrix.columns));
      ops::muon_apply(stream,
                      {.weight = u.weights.rows(run.begin, run.count),
                       .direction = u.received.shard.rows(run.begin, run.count),
                       .compute_weight = u.compute.empty() ? TensorView() : u.compute.rows(run.begin, run.count),
                       .rate = rate,
                       .skip = u.skip,
                       .rounding = run.rounding,
                       .scale = kScale * std::sqrt(side),
                       .weight_decay = run.weight_decay});
    }
  }

  MuonSettings settings_;
  std::shared_ptr<const Optimizer> elementwise_;
};

}  // namespace

std::shared_ptr<const Optimizer> make_muon(const MuonSettings& settings) {
  return std::make_shared<Muon>(settings);
}

nn::FlatSpecOf muon_specs(nn::FlatSpecOf spec_of) {
  return [of = std::move(spec_of)](const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = of(param, place);
    const bool matrix = place.kind == nn::UnitId::Kind::block && param.segments.front().global.rank() >= 2;
    if (spec.trainable) spec.elementwise = !matrix;
    return spec;
  };
}

}  // namespace hawser::optim
