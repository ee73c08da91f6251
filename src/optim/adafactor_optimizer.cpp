#include "optim/adafactor_optimizer.h"

#include <set>

#include "nn/segment_ranges.h"
#include "ops/adafactor/adafactor.h"
#include "optim/tensor_runs.h"

namespace hawser::optim {

namespace {

using Kind = nn::Granularity::Kind;

std::int64_t last_of(const Shape& shape) {
  return shape[shape.rank() - 1];
}

// Where the values of all segments of a flat are.
struct FlatValues {
  explicit FlatValues(const nn::Flat& flat)
      : rows(nn::segment_values(flat, {.kind = Kind::row})),
        columns(nn::segment_values(flat, {.kind = Kind::column})),
        matrices(nn::segment_values(flat, {.kind = Kind::matrix})) {
    std::size_t at = 0;
    for (const nn::Param& param : flat.params()) {
      first.push_back(at);
      at += param.segments.size();
    }
  }
  std::vector<nn::SegmentValues> rows, columns, matrices;  // by segment, one parameter after another
  std::vector<std::size_t> first;                          // of each parameter
};

// The matrices of a segment on this rank, [count, rows, columns], and where the values of one are: in a slot and in the
// sums of a flat.
class Matrices {
 public:
  Matrices(const nn::Flat& flat, const FlatValues& values, int param, int segment)
      : segment_(&flat.params()[static_cast<std::size_t>(param)].segments[static_cast<std::size_t>(segment)]) {
    const std::size_t at = values.first[static_cast<std::size_t>(param)] + static_cast<std::size_t>(segment);
    row_ = values.rows[at], column_ = values.columns[at], matrix_ = values.matrices[at];
    const Shape shape = nn::segment_shape(*segment_);
    columns = last_of(shape);
    rows = shape.rank() > 1 ? shape[shape.rank() - 2] : 1;
    count = shape.elements() / (rows * columns);
    all_rows = rank() > 1 ? last_of(row_.global) : 1;
    all_columns = last_of(column_.global);
  }

  std::int64_t count = 0, rows = 0, columns = 0;  // on this rank
  std::int64_t all_rows = 0, all_columns = 0;     // of a complete matrix

  // Values of matrix m in a slot.
  std::int64_t row_slot(std::int64_t m) const { return row_.first + m * rows; }
  std::int64_t column_slot(std::int64_t m) const { return column_.first + m * columns; }
  std::int64_t matrix_slot(std::int64_t m) const { return matrix_.first + m; }
  // And in the sums of all tensors: of the complete matrix, and of this rank's rows and columns.
  std::int64_t all_row_sums(std::int64_t m) const { return row_.sum_first + number(row_, m) * all_rows; }
  std::int64_t row_sums(std::int64_t m) const { return all_row_sums(m) + own(row_, rank() > 1); }
  std::int64_t column_sums(std::int64_t m) const {
    return column_.sum_first + number(column_, m) * all_columns + own(column_, true);
  }
  std::int64_t matrix_sum(std::int64_t m) const {
    return matrix_.sum_first + (rank() > 2 ? offset_of(matrix_.offset, matrix_.global, matrix_.global.rank()) : 0) + m;
  }

 private:
  int rank() const { return segment_->global.rank(); }
  // The first `dims` coordinates as one index.
  static std::int64_t offset_of(const Shape& offset, const Shape& global, int dims) {
    std::int64_t at = 0;
    for (int dim = 0; dim < dims; ++dim) at = at * global[dim] + offset[dim];
    return at;
  }
  // The number of matrix m in the complete tensor. Only a leading dim is sliced if there are several.
  std::int64_t number(const nn::SegmentValues& of, std::int64_t m) const {
    return m + offset_of(of.offset, of.global, of.global.rank() - 1);
  }
  static std::int64_t own(const nn::SegmentValues& of, bool has_dim) {
    return has_dim ? of.offset[of.offset.rank() - 1] : 0;
  }

  const nn::Segment* segment_;
  nn::SegmentValues row_, column_, matrix_;
};

// Elements of one matrix that a shard has.
struct MatrixRun {
  std::int64_t matrix = 0;            // of the segment on this rank
  std::int64_t first = 0;             // element of it
  std::int64_t begin = 0, count = 0;  // of the shard
};

class Adafactor : public Optimizer {
 public:
  explicit Adafactor(const AdafactorSettings& settings) : settings_(settings) { check_groups(settings.groups); }

  std::string name() const override { return "adafactor"; }
  std::vector<StateSlot> slots(const nn::Flat& flat) const override {
    if (flat.spec().elementwise) return {{"exp_avg_sq"}};
    return {{"exp_avg_sq_row", DType::f32, {.kind = Kind::row}},
            {"exp_avg_sq_col", DType::f32, {.kind = Kind::column}},
            {"exp_avg_sq_mean", DType::f32, {.kind = Kind::matrix}}};
  }
  std::vector<Phase> phases(const nn::Flat& flat) const override {
    const Phase direction{.sums = matrices(flat) * (settings_.scale_parameter ? 2 : 1)};
    if (flat.spec().elementwise) return {direction, {}};
    return {{.sums = rows(flat) + nn::sum_count(flat, {.kind = Kind::column})}, direction, {}};
  }
  std::int64_t scalars() const override { return settings_.groups.count * ops::kAdafactorHyperFields; }

  void prepare(Stream& stream, const Prepare& p) const override {
    for (int group = 0; group < settings_.groups.count; ++group) {
      ops::adafactor_hyper(stream, {.learning_rate = p.learning_rate.rows(group, 1),
                                    .step = p.step,
                                    .hyper = hyper_of(p.scalars, group),
                                    .relative_step = settings_.relative_step});
    }
  }

  void update(Stream& stream, const FlatUpdate& u) const override {
    const int phase = u.phase + (u.flat.spec().elementwise ? 1 : 0);
    if (phase == 0) return add_squares(stream, u);
    if (phase == 1) return add_directions(stream, u);
    apply(stream, u);
  }

 private:
  static TensorView hyper_of(const TensorView& scalars, int group) {
    return scalars.rows(group * ops::kAdafactorHyperFields, ops::kAdafactorHyperFields);
  }
  TensorView hyper(const FlatUpdate& u) const { return hyper_of(u.scalars, settings_.groups.of(u.flat)); }
  static std::int64_t rows(const nn::Flat& flat) { return nn::sum_count(flat, {.kind = Kind::row}); }
  static std::int64_t matrices(const nn::Flat& flat) { return nn::sum_count(flat, {.kind = Kind::matrix}); }

  // Calls visit(matrices of a segment, run) for each matrix that the shard has elements of.
  template <class Visit>
  static void each_run(const FlatUpdate& u, const Visit& visit) {
    const FlatValues values(u.flat);
    for (const nn::SegmentRange& range : nn::segment_ranges(u.flat, u.begin, u.count)) {
      const Matrices of(u.flat, values, range.param, range.segment);
      const std::int64_t size = of.rows * of.columns;
      for (std::int64_t done = 0; done < range.count;) {
        const std::int64_t element = range.first + done, count = std::min(size - element % size, range.count - done);
        visit(of, MatrixRun{element / size, element % size, range.at + done, count});
        done += count;
      }
    }
  }
  static std::int64_t first_row(const Matrices& of, const MatrixRun& run) { return run.first / of.columns; }
  static std::int64_t row_count(const Matrices& of, const MatrixRun& run) {
    return (run.first + run.count - 1) / of.columns - first_row(of, run) + 1;
  }

  static void add_squares(Stream& stream, const FlatUpdate& u) {
    const std::int64_t columns_at = rows(u.flat);
    each_run(u, [&](const Matrices& of, const MatrixRun& run) {
      const TensorView& sums = u.sent.sums;
      ops::adafactor_sums(stream,
                          {.gradient = u.gradient.rows(run.begin, run.count),
                           .coefficient = u.coefficient,
                           .row_sums = sums.rows(of.row_sums(run.matrix) + first_row(of, run), row_count(of, run)),
                           .column_sums = sums.rows(columns_at + of.column_sums(run.matrix), of.columns),
                           .first = run.first,
                           .columns = of.columns});
    });
  }

  // Every rank has the values of all rows and columns of its slices.
  void update_moments(Stream& stream, const FlatUpdate& u) const {
    const FlatValues values(u.flat);
    std::set<std::int64_t> done;  // shared values
    const TensorView& sums = u.received.sums;
    const std::int64_t columns_at = rows(u.flat);
    for (int param = 0; param < static_cast<int>(u.flat.params().size()); ++param) {
      const auto segments = static_cast<int>(u.flat.params()[static_cast<std::size_t>(param)].segments.size());
      for (int segment = 0; segment < segments; ++segment) {
        const Matrices of(u.flat, values, param, segment);
        for (std::int64_t m = 0; m < of.count; ++m) {
          if (!done.insert(of.row_slot(m)).second) continue;
          ops::adafactor_moments(stream, {.row = u.slots[0].rows(of.row_slot(m), of.rows),
                                          .column = u.slots[1].rows(of.column_slot(m), of.columns),
                                          .mean = u.slots[2].rows(of.matrix_slot(m), 1),
                                          .row_sums = sums.rows(of.row_sums(m), of.rows),
                                          .column_sums = sums.rows(columns_at + of.column_sums(m), of.columns),
                                          .all_row_sums = sums.rows(of.all_row_sums(m), of.all_rows),
                                          .hyper = hyper(u),
                                          .skip = u.skip,
                                          .columns = of.all_columns});
        }
      }
    }
  }

  void add_directions(Stream& stream, const FlatUpdate& u) const {
    const bool elementwise = u.flat.spec().elementwise;
    if (!elementwise) update_moments(stream, u);
    const std::int64_t weights_at = matrices(u.flat);
    each_run(u, [&](const Matrices& of, const MatrixRun& run) {
      const TensorView& sums = u.sent.sums;
      const std::int64_t sum = of.matrix_sum(run.matrix);
      ops::AdafactorDirection args{
          .gradient = u.gradient.rows(run.begin, run.count),
          .coefficient = u.coefficient,
          .weight = u.weights.rows(run.begin, run.count),
          .update_sum = sums.rows(sum, 1),
          .weight_sum = settings_.scale_parameter ? sums.rows(weights_at + sum, 1) : TensorView(),
          .hyper = hyper(u),
          .skip = u.skip,
          .first = run.first,
          .columns = of.columns};
      if (elementwise) {
        args.second = u.slots[0].rows(run.begin, run.count);
      } else {
        args.row = u.slots[0].rows(of.row_slot(run.matrix) + first_row(of, run), row_count(of, run));
        args.column = u.slots[1].rows(of.column_slot(run.matrix), of.columns);
        args.mean = u.slots[2].rows(of.matrix_slot(run.matrix), 1);
      }
      ops::adafactor_direction(stream, args);
    });
  }

  void apply(Stream& stream, const FlatUpdate& u) const {
    const std::vector<TensorRun> runs = tensor_runs(u, settings_.groups.decay_of(u.flat));
    const std::int64_t weights_at = matrices(u.flat);
    std::size_t at = 0;  // of the tensor
    each_run(u, [&](const Matrices& of, const MatrixRun& run) {
      while (runs[at].begin + runs[at].count <= run.begin) ++at;
      const std::int64_t sum = of.matrix_sum(run.matrix);
      ops::StochasticRounding rounding = runs[at].rounding;
      rounding.noise.first += run.begin - runs[at].begin;
      ops::adafactor_apply(
          stream, {.weight = u.weights.rows(run.begin, run.count),
                   .direction = u.gradient.rows(run.begin, run.count),
                   .compute_weight = u.compute.empty() ? TensorView() : u.compute.rows(run.begin, run.count),
                   .update_sum = u.received.sums.rows(sum, 1),
                   .weight_sum = settings_.scale_parameter ? u.received.sums.rows(weights_at + sum, 1) : TensorView(),
                   .hyper = hyper(u),
                   .skip = u.skip,
                   .rounding = rounding,
                   .elements = of.all_rows * of.all_columns,
                   .weight_decay = runs[at].weight_decay});
    });
  }

  AdafactorSettings settings_;
};

}  // namespace

std::shared_ptr<const Optimizer> make_adafactor(const AdafactorSettings& settings) {
  return std::make_shared<Adafactor>(settings);
}

nn::FlatSpecOf adafactor_specs(nn::FlatSpecOf spec_of) {
  return [of = std::move(spec_of)](const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = of(param, place);
    if (spec.trainable) spec.elementwise = param.segments.front().global.rank() < 2;
    return spec;
  };
}

}  // namespace hawser::optim
