// Layers with frozen parameters: what they save, and that the other gradients keep their bits. Lifetimes of saved
// tensors.
#include <gtest/gtest.h>

#include "nn/testing/layer_cases.h"

namespace hawser::nn {
namespace frozen_test {

using testing::Case;
using testing::cases;
using testing::LayerResult;
using testing::LayerRun;
using testing::prepare;
using testing::TestContext;
using testing::TestSink;

struct Frozen {
  std::string name;
  std::vector<bool> trainable;
};

// Everything is trainable; nothing; adapters alone; all but one parameter, and one parameter.
std::vector<Frozen> frozen_variants(const Case& c) {
  const std::size_t count = c.layer->params().size();
  std::vector<Frozen> out = {{"all", std::vector<bool>(count, true)}, {"none", std::vector<bool>(count, false)}};
  Frozen adapters{"adapters", {}};
  for (const Param& param : c.layer->params())
    adapters.trainable.push_back(param.name.find("lora_") != std::string::npos);
  if (adapters.trainable != out[1].trainable) out.push_back(adapters);
  for (std::size_t p = 0; p < count; ++p) {
    for (const bool others : {false, true}) {
      out.push_back({(others ? "all but " : "only ") + c.layer->params()[p].name, std::vector<bool>(count, others)});
      out.back().trainable[p] = !others;
    }
  }
  return out;
}

void reject_frozen(TestSink& sink, const Frozen& frozen) {
  for (std::size_t p = 0; p < frozen.trainable.size(); ++p) {
    if (!frozen.trainable[p]) sink.reject(static_cast<int>(p));
  }
}

LayerResult run(const Case& c, const Frozen& frozen, const SavePolicy& policy) {
  const auto device = make_cpu_device({.threads = 1});
  TestContext ctx(*device, DType::bf16);
  prepare(ctx, c);
  ctx.trainable_ = TrainableParams(frozen.trainable);
  TestSink sink(ctx, c.layer->params());
  reject_frozen(sink, frozen);
  LayerRun layer_run(ctx, *c.layer, c.documents.rows(), c.width, policy);
  layer_run.run(sink);
  return layer_run.result(sink);
}

// Saved tensors are full of NaN outside their lifetimes: no pass reads what is not saved.
TEST(Frozen, OtherGradientsKeepTheirBits) {
  for (const Case& c : cases()) {
    const std::vector<Frozen> variants = frozen_variants(c);
    const LayerResult all = run(c, variants[0], {});
    for (const Frozen& frozen : variants) {
      for (const SavePolicy& policy : testing::all_policies()) {
        const LayerResult got = run(c, frozen, policy);
        const std::string where = c.name + ": " + frozen.name + ": " + testing::text(policy);
        EXPECT_EQ(got.y, all.y) << where;
        EXPECT_EQ(got.dx, all.dx) << where;
        for (std::size_t p = 0; p < frozen.trainable.size(); ++p) {
          if (!frozen.trainable[p]) continue;
          EXPECT_EQ(got.gradients[p], all.gradients[p]) << where;
        }
      }
    }
  }
}

// Checks of every saved tensor: no access before its writer's pass, it is written there before it is read, and its last
// reader is the last pass that accesses it.
void expect_lifetimes(const Case& c, const Frozen& frozen, const SavePolicy& policy) {
  MetaDevice device;
  TestContext ctx(device, DType::bf16);
  prepare(ctx, c);
  ctx.trainable_ = TrainableParams(frozen.trainable);
  TestSink sink(ctx, c.layer->params());
  reject_frozen(sink, frozen);
  LayerRun layer_run(ctx, *c.layer, c.documents.rows(), c.width, policy);
  std::vector<TensorView> views(layer_run.saved_specs().size());
  layer_run.on_saved = [&](std::size_t index, const TensorView& view) { views[index] = view; };
  layer_run.run(sink, [&](Pass pass) { device.set_instruction(static_cast<int>(pass)); });
  for (std::size_t s = 0; s < views.size(); ++s) {
    const SavedSpec& spec = layer_run.saved_specs()[s];
    ASSERT_EQ(views[s].empty(), spec.shape.rank() == 0);
    if (views[s].empty()) continue;
    const std::string where = c.name + ": " + frozen.name + ": " + testing::text(policy) + ": " + spec.name;
    const Access full = reads(views[s]);
    bool written = false, read_later = false;
    int last = -1;
    for (const TraceItem& item : device.trace().items) {
      for (const Access& access : item.record.accesses) {
        if (!overlap(access, full)) continue;
        EXPECT_TRUE(written || access.write) << where << " is read by " << item.record.name << " too early";
        EXPECT_GE(item.instruction, static_cast<int>(spec.writer)) << where;
        EXPECT_LE(item.instruction, static_cast<int>(spec.last_reader)) << where << ": " << item.record.name;
        EXPECT_TRUE(written || item.instruction == static_cast<int>(spec.writer)) << where;
        written = true;
        read_later = read_later || !access.write;
        last = item.instruction;
      }
    }
    EXPECT_TRUE(read_later) << where << " is never read";
    EXPECT_EQ(last, static_cast<int>(spec.last_reader)) << where << " is kept too long";
  }
}

TEST(Layers, SavedTensorsAreWrittenAndReadWhenDeclared) {
  for (const Case& c : cases()) {
    for (const Frozen& frozen : frozen_variants(c)) {
      for (const SavePolicy& policy : testing::all_policies()) expect_lifetimes(c, frozen, policy);
    }
  }
}

std::int64_t forward_bytes(const Layer& layer, std::int64_t rows, const SavePolicy& policy,
                           const TrainableParams& trainable) {
  std::int64_t bytes = 0;
  for (const SavedSpec& spec : layer.saved_specs({rows, rows}, DType::bf16, policy, trainable, {})) {
    if (spec.shape.rank() > 0 && spec.writer == Pass::forward) bytes += spec.shape.elements() * size_of(spec.dtype);
  }
  return bytes;
}

// T rows in bf16, adapters of q and v: attention saves the same as with everything trainable, whose adapters read the
// normed rows, and 2 x 8 inner values a row; the MLP saves no normed rows (C) and no inner ones (F).
TEST(Frozen, SavedBytesOfALoraModel) {
  constexpr std::int64_t kRows = 32, kWidth = 64, kInner = 160, kHeads = 4, kHeadDim = 16;
  AttentionConfig a{.width = kWidth, .heads = kHeads, .kv_heads = kHeads, .head_dim = kHeadDim};
  a.norm = "norm", a.q = "q", a.k = "k", a.v = "v", a.output = "o", a.fused = "qkv";
  const AttentionLayer plain(a);
  a.adapters = {{"q", 8}, {"v", 8}};
  const AttentionLayer adapted(a);
  MlpConfig m{.width = kWidth, .inner = kInner};
  m.norm = "norm", m.gate = "gate", m.up = "up", m.down = "down", m.fused = "gate_up";
  const MlpLayer mlp(m);
  const TrainableParams all, none(std::vector<bool>(3, false)), adapters({false, false, false, true, true, true, true});
  const std::int64_t row = kRows * 2, statistics = kRows * 4;
  const std::int64_t kept_by_attention = statistics + row * (3 * kWidth + kWidth) + kHeads * kRows * 4;
  EXPECT_EQ(forward_bytes(plain, kRows, {}, all), kept_by_attention + row * kWidth);
  EXPECT_EQ(forward_bytes(plain, kRows, {}, none), kept_by_attention);
  EXPECT_EQ(forward_bytes(adapted, kRows, {}, adapters), kept_by_attention + row * (kWidth + 2 * 8));
  EXPECT_EQ(forward_bytes(mlp, kRows, {}, all), statistics + row * (kWidth + 3 * kInner));
  EXPECT_EQ(forward_bytes(mlp, kRows, {}, none), statistics + row * 2 * kInner);
}

}  // namespace frozen_test
}  // namespace hawser::nn
