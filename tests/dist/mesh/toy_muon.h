// Two further optimizers: one that gathers matrices and scatters results, and one with state of few bits.
#pragma once

#include "base/philox.h"
#include "optim/adamw_optimizer.h"
#include "toy_optimizers.h"

namespace hawser::testing {

// Orthogonal updates of the matrices of blocks (Muon, group 1), AdamW for the rest (group 0). The ranks gather the
// momentum, each orthogonalizes some of the matrices, and the results are scattered to the shards.
class Muon : public optim::Optimizer {
 public:
  static nn::FlatSpec spec_of(const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.group = place.kind == nn::UnitId::Kind::block && param.shape.rank() == 2 ? 1 : 0;
    return spec;
  }

  std::string name() const override { return "muon"; }
  std::vector<optim::StateSlot> slots(const nn::Flat& flat) const override {
    return flat.spec().group == 0 ? rest_->slots(flat) : std::vector<optim::StateSlot>{{"momentum"}};
  }
  std::vector<optim::Phase> phases(const nn::Flat& flat) const override {
    if (flat.spec().group == 0) return rest_->phases(flat);
    return {{.gathers = DType::f32, .slices = true}, {.scatters = DType::f32, .slices = true}, {}};
  }
  bool needs_matrices(const nn::Flat& flat) const override { return flat.spec().group == 1; }
  std::int64_t scalars() const override { return rest_->scalars() + 1; }
  void prepare(Stream& stream, const optim::Prepare& step) const override {
    optim::Prepare rest = step;
    rest.scalars = step.scalars.rows(0, rest_->scalars());
    rest_->prepare(stream, rest);
    ops::copy(stream, {.x = step.learning_rate.rows(1, 1), .y = step.scalars.rows(rest_->scalars(), 1)});
  }

  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    if (u.flat.spec().group == 0) {
      optim::FlatUpdate rest = u;
      rest.scalars = u.scalars.rows(0, rest_->scalars());
      return rest_->update(stream, rest);
    }
    const TensorView momentum = u.slots[0];
    if (u.phase == 0) {
      host(stream, "muon_momentum", {u.gradient, u.coefficient, u.skip, momentum}, {momentum, u.sent.shard},
           [u, momentum] {
             const bool skip = *u.skip.data<std::int32_t>() != 0;
             for (std::int64_t i = 0; i < u.count; ++i) {
               float& m = momentum.data<float>()[i];
               if (!skip) m = 0.9f * m + *u.coefficient.data<float>() * u.gradient.data<float>()[i];
               u.sent.shard.data<float>()[i] = m;
             }
           });
    } else if (u.phase == 1) {
      std::int64_t elements = 0, rows = 0;
      for (const nn::Param& param : u.flat.params()) {
        elements = std::max(elements, param.elements() * u.slices);
        rows = std::max({rows, param.shape[0] * u.slices, param.shape[1] * u.slices});
      }
      const TensorView x = u.temp(DType::f32, {4, elements}), squares = u.temp(DType::f32, {2, rows * rows});
      host(stream, "muon_orthogonalize", {u.received.flat, u.sent.flat}, {u.sent.flat, x, squares},
           [u, x, squares] { orthogonalize_own(u, x, squares); });
    } else {
      host(stream, "muon_apply", {u.weights, u.scalars, u.skip, u.received.shard}, {u.weights, u.compute},
           [u, at = rest_->scalars()] {
             if (*u.skip.data<std::int32_t>() != 0) return;
             for (std::int64_t i = 0; i < u.count; ++i) {
               set_weight(u, i,
                          u.weights.data<float>()[i] - u.scalars.data<float>()[at] * u.received.shard.data<float>()[i]);
             }
           });
    }
  }

 private:
  static void orthogonalize_own(const optim::FlatUpdate& u, const TensorView& x, const TensorView& squares) {
    const auto own = static_cast<int>(u.exchanged_element(u.begin, u.slice) / u.count);
    float *const from = x.rows(2, 1).data<float>(), *const to = x.rows(3, 1).data<float>();
    int number = 0;
    for (const nn::SegmentRange& piece : nn::segment_ranges(u.flat, 0, u.count * u.parts)) {
      if (number++ % (u.parts * u.slices) != own) continue;
      const nn::Segment& segment = nn::segment_of(u.flat, piece);
      const std::int64_t rows = nn::range_shape(segment)[0], columns = segment.global[1];
      // Of an element of the complete matrix: where it is in the flat of all slices.
      const auto place = [&](std::int64_t row, std::int64_t column) {
        if (!segment.slice) return u.exchanged_element(piece.at + row * columns + column, 0);
        const nn::Slice& slice = *segment.slice;
        const std::int64_t width = slice.dim == 1 ? slice.size : columns;
        std::int64_t& index = slice.dim == 1 ? column : row;
        const auto of = static_cast<int>(index / slice.size);
        index %= slice.size;
        return u.exchanged_element(piece.at + row * width + column, of);
      };
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        from[i] = u.received.flat.data<float>()[place(i / columns, i % columns)];
      }
      orthogonalize(from, to, rows, columns, x, squares);
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        u.sent.flat.data<float>()[place(i / columns, i % columns)] = to[i];
      }
    }
  }

  // Three Newton-Schulz iterations: X = X / |X|, then X = a X + (b A + c A^2) X with A = X X^T.
  static void orthogonalize(const float* from, float* to, std::int64_t rows, std::int64_t columns, const TensorView& x,
                            const TensorView& squares) {
    const bool turn = rows > columns;
    const std::int64_t n = std::min(rows, columns), k = std::max(rows, columns);
    float *now = x.data<float>(), *next = now + x.shape()[1];
    float *a = squares.data<float>(), *b = a + squares.shape()[1];
    float norm = 0;
    for (std::int64_t i = 0; i < n * k; ++i) norm += from[i] * from[i];
    norm = std::sqrt(norm) + 1e-7f;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < k; ++j) now[i * k + j] = (turn ? from[j * n + i] : from[i * k + j]) / norm;
    }
    for (int round = 0; round < 3; ++round) {
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          a[i * n + j] = 0;
          for (std::int64_t t = 0; t < k; ++t) a[i * n + j] += now[i * k + t] * now[j * k + t];
        }
      }
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
          float square = 0;
          for (std::int64_t t = 0; t < n; ++t) square += a[i * n + t] * a[t * n + j];
          b[i * n + j] = -4.775f * a[i * n + j] + 2.0315f * square;
        }
      }
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < k; ++j) {
          float sum = 3.4445f * now[i * k + j];
          for (std::int64_t t = 0; t < n; ++t) sum += b[i * n + t] * now[t * k + j];
          next[i * k + j] = sum;
        }
      }
      std::swap(now, next);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < k; ++j) (turn ? to[j * n + i] : to[i * k + j]) = now[i * k + j];
    }
  }

  std::shared_ptr<const optim::Optimizer> rest_ = optim::make_adamw({.weight_decay = 0.1});
};

// A moment of 8 bits with a scale for each block of 32 elements, and one of bf16 with stochastic rounding. They follow
// the weights and not the gradient, so that all meshes have the same bits.
class EightBits : public WithRate {
 public:
  static constexpr std::int64_t kBlock = 32;
  static nn::FlatSpec spec_of(const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.grain = 8 * kBlock;
    return spec;
  }

  std::string name() const override { return "eight bits"; }
  std::vector<optim::StateSlot> slots(const nn::Flat&) const override {
    return {{"moment", DType::u8},
            {"scale", DType::f32, {.kind = nn::Granularity::Kind::block, .block = kBlock}},
            {"average", DType::bf16}};
  }

  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    const Views slots(u.slots.begin(), u.slots.end());
    host(stream, "eight_bits", {u.weights, u.scalars, u.skip, u.step, slots[0], slots[1], slots[2]},
         {u.weights, u.compute, slots[0], slots[1], slots[2]}, [u, slots] {
           if (*u.skip.data<std::int32_t>() != 0) return;
           for (std::int64_t block = 0; block < u.count / kBlock; ++block) quantize(u, slots, block);
           for (const nn::SegmentRange& piece : nn::segment_ranges(u.flat, u.begin, u.count)) {
             const nn::Segment& segment = nn::segment_of(u.flat, piece);
             nn::for_each_global_run(segment, piece, [&](std::int64_t global, std::int64_t at, std::int64_t count) {
               const RandomStream random(u.seed, segment.name);
               for (std::int64_t i = 0; i < count; ++i) average(u, slots[2], at + i, random, global + i);
             });
           }
         });
  }

 private:
  static void quantize(const optim::FlatUpdate& u, const Views& slots, std::int64_t block) {
    std::uint8_t* const codes = slots[0].data<std::uint8_t>() + block * kBlock;
    float& scale = slots[1].data<float>()[block];
    std::array<float, kBlock> values;
    float largest = 0;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      const float before = static_cast<float>(static_cast<int>(codes[i]) - 128) * scale;
      float& value = values[static_cast<std::size_t>(i)];
      value = 0.9f * before + 0.1f * u.weights.data<float>()[block * kBlock + i];
      largest = std::max(largest, std::abs(value));
    }
    scale = largest / 127;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      const float value = values[static_cast<std::size_t>(i)];
      codes[i] = static_cast<std::uint8_t>(128 + (scale > 0 ? std::lround(value / scale) : 0));
    }
  }

  static void average(const optim::FlatUpdate& u, const TensorView& averages, std::int64_t at,
                      const RandomStream& random, std::int64_t global) {
    Bf16& average = averages.data<Bf16>()[at];
    const float value = 0.5f * static_cast<float>(average) + 0.3f * u.weights.data<float>()[at];
    const auto step = static_cast<std::uint64_t>(*u.step.data<std::int32_t>());
    const std::uint32_t noise = random.words(static_cast<std::uint64_t>(global), step)[0] & 0xffffu;
    average.bits = static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + noise) >> 16);
    set_weight(u, at, u.weights.data<float>()[at] - *u.scalars.data<float>() * static_cast<float>(average));
  }
};

}  // namespace hawser::testing
