// Optimizers that test the contract (optim/optimizer.h), as loops on the host: state of other extents than an element,
// and sums over ranks between phases. Matrices are in group 0, vectors in group 1 (by_rank).
#pragma once

#include <cmath>

#include "nn/segment_ranges.h"
#include "ops/copy/copy.h"
#include "optim/optimizer.h"

namespace hawser::testing {

using Views = std::vector<TensorView>;

inline void host(Stream& stream, const char* name, const Views& read, const Views& written,
                 std::function<void()> work) {
  OpRecord record{.name = name, .kind = OpKind::optimizer};
  for (const TensorView& view : read) record.accesses.push_back(reads(view));
  for (const TensorView& view : written) {
    if (!view.empty()) record.accesses.push_back(writes(view));
  }
  stream.launch(std::move(record), std::move(work));
}

inline int group_by_rank(const nn::Param& param) {
  return param.shape.rank() == 1 ? 1 : 0;
}
inline nn::FlatSpec by_rank(const nn::Param& param) {
  nn::FlatSpec spec = nn::common_domain(param);
  spec.group = group_by_rank(param);
  return spec;
}

// The values of a row, column or matrix that the elements of a piece share.
inline nn::SegmentValues part_of(const nn::Flat& flat, const nn::SegmentRange& piece, nn::Granularity::Kind kind) {
  for (const nn::SegmentValues& part : nn::segment_values(flat, {.kind = kind})) {
    if (part.param == piece.param && part.segment == piece.segment) return part;
  }
  HAWSER_CHECK(false, "no such part of ", flat.name());
  return {};
}
inline std::int64_t columns_of(const nn::Segment& segment) {
  const Shape shape = nn::segment_shape(segment);
  return shape[shape.rank() - 1];
}

inline void set_weight(const optim::FlatUpdate& u, std::int64_t at, float value) {
  u.weights.data<float>()[at] = value;
  if (!u.compute.empty() && u.compute.dtype() == DType::bf16) u.compute.data<Bf16>()[at] = Bf16(value);
}

// The learning rate of group 0 is the only scalar.
class WithRate : public optim::Optimizer {
 public:
  std::int64_t scalars() const override { return 1; }
  void prepare(Stream& stream, const optim::Prepare& step) const override {
    ops::copy(stream, {.x = step.learning_rate.rows(0, 1), .y = step.scalars});
  }
};

// Row and column statistics instead of a second moment, and an update that is clipped by its RMS over the tensor
// (Adafactor, arXiv 1804.04235, without its factors by step). Vectors keep all squares.
class Adafactor : public WithRate {
 public:
  using Kind = nn::Granularity::Kind;
  std::string name() const override { return "adafactor"; }
  std::vector<optim::StateSlot> slots(const nn::Flat& flat) const override {
    if (flat.spec().group == 1) return {{"square"}};
    return {{"row", DType::f32, {.kind = Kind::row}},
            {"column", DType::f32, {.kind = Kind::column}},
            {"mean", DType::f32, {.kind = Kind::matrix}}};
  }
  std::vector<optim::Phase> phases(const nn::Flat& flat) const override {
    const optim::Phase update{.sums = nn::sum_count(flat, {.kind = Kind::matrix})};
    if (flat.spec().group == 1) return {update, {}};
    return {{.sums = rows(flat) + nn::sum_count(flat, {.kind = Kind::column})}, update, {}};
  }

  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    const bool matrices = u.flat.spec().group == 0;
    if (matrices && u.phase == 0) return sum(stream, u);
    const bool last = u.phase == (matrices ? 2 : 1);
    Views reads{u.gradient, u.coefficient, u.scalars, u.skip}, writes{last ? u.weights : u.gradient};
    if (last) reads.insert(reads.end(), {u.weights, u.received.sums});
    if (last) writes.push_back(u.compute);
    if (!last) {
      for (const TensorView& slot : u.slots) reads.push_back(slot), writes.push_back(slot);
      reads.push_back(u.sent.sums), writes.push_back(u.sent.sums);
      if (matrices) reads.push_back(u.received.sums);
    }
    const Views slots(u.slots.begin(), u.slots.end());
    host(stream, last ? "adafactor_apply" : "adafactor_update", reads, writes, [this, u, slots, matrices, last] {
      if (*u.skip.data<std::int32_t>() != 0) return;
      if (last) return apply(u);
      if (matrices) statistics(u, slots);
      direction(u, slots, matrices);
    });
  }

 private:
  static constexpr float kBeta = 0.8f, kEpsilon = 1e-12f;
  static std::int64_t rows(const nn::Flat& flat) { return nn::sum_count(flat, {.kind = Kind::row}); }

  void sum(Stream& stream, const optim::FlatUpdate& u) const {
    host(stream, "adafactor_sum", {u.gradient, u.coefficient, u.sent.sums}, {u.sent.sums}, [u] {
      float* const sums = u.sent.sums.data<float>();
      for (const nn::SegmentRange& piece : nn::segment_ranges(u.flat, u.begin, u.count)) {
        const nn::SegmentValues row = part_of(u.flat, piece, Kind::row), column = part_of(u.flat, piece, Kind::column);
        const std::int64_t columns = columns_of(nn::segment_of(u.flat, piece));
        for (std::int64_t i = 0; i < piece.count; ++i) {
          const float g = *u.coefficient.data<float>() * u.gradient.data<float>()[piece.at + i];
          const std::int64_t element = piece.first + i;
          sums[row.sum_first + row.offset[0] + element / columns] += g * g;
          sums[rows(u.flat) + column.sum_first + column.offset[0] + element % columns] += g * g;
        }
      }
    });
  }

  void statistics(const optim::FlatUpdate& u, const Views& slots) const {
    const float* const sums = u.received.sums.data<float>();
    const auto follow = [&](float& statistic, float now) {
      statistic = kBeta * statistic + (1 - kBeta) * (now + kEpsilon);
    };
    const auto each = [&](Kind kind, auto&& visit) {
      for (const nn::SegmentValues& part : nn::segment_values(u.flat, {.kind = kind})) {
        const nn::Param& param = u.flat.params()[static_cast<std::size_t>(part.param)];
        visit(part, nn::range_shape(param.segments[static_cast<std::size_t>(part.segment)]));
      }
    };
    each(Kind::row, [&](const nn::SegmentValues& part, const Shape& global) {
      for (std::int64_t i = 0; i < part.shape[0]; ++i) {
        follow(slots[0].data<float>()[part.first + i],
               sums[part.sum_first + part.offset[0] + i] / static_cast<float>(global[1]));
      }
    });
    each(Kind::column, [&](const nn::SegmentValues& part, const Shape& global) {
      for (std::int64_t i = 0; i < part.shape[0]; ++i) {
        follow(slots[1].data<float>()[part.first + i],
               sums[rows(u.flat) + part.sum_first + part.offset[0] + i] / static_cast<float>(global[0]));
      }
    });
    const std::vector<nn::SegmentValues> means = nn::segment_values(u.flat, {.kind = Kind::matrix});
    std::size_t m = 0;
    each(Kind::row, [&](const nn::SegmentValues& part, const Shape& global) {
      float all = 0;
      for (std::int64_t i = 0; i < global[0]; ++i) all += sums[part.sum_first + i];
      follow(slots[2].data<float>()[means[m++].first], all / static_cast<float>(global.elements()));
    });
  }

  void direction(const optim::FlatUpdate& u, const Views& slots, bool matrices) const {
    for (const nn::SegmentRange& piece : nn::segment_ranges(u.flat, u.begin, u.count)) {
      const nn::SegmentValues row = part_of(u.flat, piece, Kind::row), column = part_of(u.flat, piece, Kind::column),
                              matrix = part_of(u.flat, piece, Kind::matrix);
      const std::int64_t columns = columns_of(nn::segment_of(u.flat, piece));
      for (std::int64_t i = 0; i < piece.count; ++i) {
        float& gradient = u.gradient.data<float>()[piece.at + i];
        const float g = *u.coefficient.data<float>() * gradient;
        const std::int64_t element = piece.first + i;
        float square = 0;
        if (matrices) {
          square = slots[0].data<float>()[row.first + element / columns] *
                   slots[1].data<float>()[column.first + element % columns] / slots[2].data<float>()[matrix.first];
        } else {
          float& kept = slots[0].data<float>()[piece.at + i];
          kept = kBeta * kept + (1 - kBeta) * (g * g + kEpsilon);
          square = kept;
        }
        gradient = g / std::sqrt(square);
        u.sent.sums.data<float>()[matrix.sum_first] += gradient * gradient;
      }
    }
  }

  void apply(const optim::FlatUpdate& u) const {
    for (const nn::SegmentRange& piece : nn::segment_ranges(u.flat, u.begin, u.count)) {
      const nn::SegmentValues matrix = part_of(u.flat, piece, Kind::matrix);
      const auto elements = static_cast<float>(nn::range_shape(nn::segment_of(u.flat, piece)).elements());
      const float rms = std::sqrt(u.received.sums.data<float>()[matrix.sum_first] / elements);
      const float rate = *u.scalars.data<float>() / std::max(1.0f, rms);
      for (std::int64_t i = piece.at; i < piece.at + piece.count; ++i) {
        set_weight(u, i, u.weights.data<float>()[i] - rate * u.gradient.data<float>()[i]);
      }
    }
  }
};

// Adam's update, scaled by the norm of the tensor over that of its update (LAMB, arXiv 1904.00962).
class Lamb : public WithRate {
 public:
  using Kind = nn::Granularity::Kind;
  std::string name() const override { return "lamb"; }
  std::vector<optim::StateSlot> slots(const nn::Flat&) const override { return {{"first"}, {"second"}}; }
  std::vector<optim::Phase> phases(const nn::Flat& flat) const override { return {{.sums = 2 * tensors(flat)}, {}}; }

  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    const Views slots(u.slots.begin(), u.slots.end());
    if (u.phase == 0) {
      host(stream, "lamb_moments", {u.weights, u.gradient, u.coefficient, u.skip, slots[0], slots[1], u.sent.sums},
           {u.gradient, slots[0], slots[1], u.sent.sums}, [u, slots] {
             if (*u.skip.data<std::int32_t>() != 0) return;
             float* const sums = u.sent.sums.data<float>();
             for (const nn::SegmentRange& piece : nn::segment_ranges(u.flat, u.begin, u.count)) {
               const std::int64_t tensor = part_of(u.flat, piece, Kind::matrix).sum_first;
               for (std::int64_t i = piece.at; i < piece.at + piece.count; ++i) {
                 const float g = *u.coefficient.data<float>() * u.gradient.data<float>()[i];
                 float &m = slots[0].data<float>()[i], &v = slots[1].data<float>()[i];
                 m = 0.9f * m + 0.1f * g;
                 v = 0.95f * v + 0.05f * g * g;
                 const float w = u.weights.data<float>()[i], step = m / (std::sqrt(v) + 1e-6f) + 0.01f * w;
                 u.gradient.data<float>()[i] = step;
                 sums[tensor] += w * w;
                 sums[tensors(u.flat) + tensor] += step * step;
               }
             }
           });
      return;
    }
    host(stream, "lamb_apply", {u.weights, u.gradient, u.scalars, u.skip, u.received.sums}, {u.weights, u.compute},
         [u] {
           if (*u.skip.data<std::int32_t>() != 0) return;
           const float* const sums = u.received.sums.data<float>();
           for (const nn::SegmentRange& piece : nn::segment_ranges(u.flat, u.begin, u.count)) {
             const std::int64_t tensor = part_of(u.flat, piece, Kind::matrix).sum_first;
             const float weight = std::sqrt(sums[tensor]), step = std::sqrt(sums[tensors(u.flat) + tensor]);
             const float rate = *u.scalars.data<float>() * (weight > 0 && step > 0 ? weight / step : 1);
             for (std::int64_t i = piece.at; i < piece.at + piece.count; ++i) {
               set_weight(u, i, u.weights.data<float>()[i] - rate * u.gradient.data<float>()[i]);
             }
           }
         });
  }

 private:
  static std::int64_t tensors(const nn::Flat& flat) { return nn::sum_count(flat, {.kind = Kind::matrix}); }
};

}  // namespace hawser::testing
