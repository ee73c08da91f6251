// Plans are tight and steps match them: the arena is near the live bytes at the peak, every byte of it is used, every
// item is as planned, and no buffer is accessed outside of its lifetime.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/testing/test_paths.h"
#include "config/config.h"
#include "models/families.h"
#include "models/testing/published.h"
#include "support.h"

namespace hawser {
namespace tight_test {

using testing::all_policies;
using testing::LayoutOptions;
using testing::make_test_layout;

void expect_tight(const models::Model& model, LayoutOptions options, const char* name, double max = 1.03) {
  for (const auto checkpointing : testing::kPolicies) {
    options.checkpointing = checkpointing;
    plan::LayoutChoices layout = make_test_layout(options, model);
    // Temporaries of bf16 attention on a CPU have other sizes where it has bf16 units.
    if (options.compute == DType::bf16) layout.device = DeviceKind::cuda;
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    const auto& placement = plan.buffers.placement;
    const double ratio = static_cast<double>(placement.bytes) / static_cast<double>(placement.live_bytes);
    std::printf("%s, %s: arena %.4f of live\n", name, testing::text_of(options).c_str(), ratio);
    EXPECT_LE(ratio, max) << name << ": " << testing::text_of(options);
  }
}

TEST(Tight, ArenasAreNearTheLiveBytesAtThePeak) {
  const models::Model toy(testing::llama_description({.blocks = 4}));
  expect_tight(toy, {.length = 128, .sequences = 2}, "toy");
  // Buffers of a few kilobytes on four streams: sets of buffers that must not share bytes pairwise need more than
  // the live bytes at any moment (4% more, found by search), and no placement is smaller than such a set.
  expect_tight(toy, {.mesh = {.context = 2, .shard = 2}, .length = 256, .micro_batches = 2}, "toy", 1.08);
  const models::Model smollm(testing::llama_description(testing::smollm2_sizes()));
  expect_tight(smollm, {.length = 1024}, "SmolLM2");
  expect_tight(smollm, {.mesh = {.context = 2, .shard = 4, .replicate = 2}, .length = 4096, .micro_batches = 2},
               "SmolLM2");
  Problems problems;
  const models::Model llama(
      models::read_description(cat(testing::kSourceFolder, "/recipes/configs/llama-3.1-8b.json"), problems));
  for (const comm::MeshSizes& mesh : {comm::MeshSizes{.shard = 8}, comm::MeshSizes{.context = 4, .shard = 2},
                                      comm::MeshSizes{.context = 8}, comm::MeshSizes{.shard = 8, .replicate = 4}}) {
    expect_tight(llama, {.mesh = mesh, .length = 16384, .documents = 1, .compute = DType::bf16}, "Llama-8B");
  }
}

// Layers and head have weights of two sizes, and the gradients of the first micro-batch's embedding are still live in
// the next forward pass.
TEST(Tight, ArenasOfTwoMicroBatchesOnGpus) {
  Problems problems;
  const models::Model mistral(models::describe_config(models::testing::kPublished[0].config, "config.json", problems));
  ASSERT_EQ(problems.lines(), "");
  for (const auto checkpointing : testing::kPolicies) {
    const LayoutOptions options{.mesh = {.shard = 8},
                                .length = 2048,
                                .documents = 1,
                                .checkpointing = checkpointing,
                                .micro_batches = 2,
                                .compute = DType::bf16,
                                .reduce_dtype = DType::bf16};
    plan::LayoutChoices layout = make_test_layout(options, mistral);
    layout.device = DeviceKind::cuda;
    const auto placement =
        plan::plan_rank(mistral, plan::derive(layout, mistral), step::Purpose::train, 0).buffers.placement;
    EXPECT_LE(static_cast<double>(placement.bytes), 1.01 * static_cast<double>(placement.live_bytes))
        << testing::text_of(options);
  }
}

// Counts the arena bytes that a step does not write. It runs twice with different patterns in the arena, so that a byte
// written with the value of one pattern counts as written.
TEST(Tight, AStepWritesAllOfItsArena) {
  if (step::kAddressSanitizer) GTEST_SKIP() << "needs a build without AddressSanitizer, which poisons the arena";
  const models::Model model(testing::llama_description(
      {.width = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .inner = 352, .vocabulary = 512, .blocks = 4}));
  for (LayoutOptions options : all_policies()) {
    // GEMMs in bf16 may widen their operands in a workspace, which processors with bf16 units do not use.
    if (options.compute == DType::bf16) continue;
    options.length = 128;
    options.sequences = 2;
    const plan::LayoutChoices layout = make_test_layout(options, model);
    const auto mesh = comm::make_self_mesh();
    const auto device = make_cpu_device();
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
    testing::Steps steps(session);
    const Arena& arena = session.arena();
    std::vector<bool> untouched(static_cast<std::size_t>(arena.bytes()), true);
    for (const int pattern : {0xa5, 0x3c}) {
      std::memset(arena.data(), pattern, static_cast<std::size_t>(arena.bytes()));
      EXPECT_GT(steps.run(step::Purpose::train), 0.1);
      for (std::size_t i = 0; i < untouched.size(); ++i) {
        if (arena.data()[i] != static_cast<std::byte>(pattern)) untouched[i] = false;
      }
    }
    const double never = static_cast<double>(std::count(untouched.begin(), untouched.end(), true));
    std::printf("%s: %.3f%% of %lld bytes never written\n", testing::text_of(options).c_str(),
                100 * never / static_cast<double>(arena.bytes()), static_cast<long long>(arena.bytes()));
    EXPECT_LE(never, 0.01 * static_cast<double>(arena.bytes())) << testing::text_of(options);
  }
}

TEST(Replay, EveryStepMatchesItsPlanItemByItem) {
  const models::Model model(testing::toy_description());
  for (LayoutOptions options : all_policies()) {
    options.length = 61;
    options.sequences = 2;
    const plan::LayoutChoices layout = make_test_layout(options, model);
    const auto mesh = comm::make_self_mesh();
    const auto device = make_cpu_device();
    const auto run = [&](engine::SessionChecks checks) {
      engine::Session session(model, plan::derive(layout, model), *device, *mesh,
                              {step::Purpose::train, step::Purpose::gradient_norms, step::Purpose::loss}, std::nullopt,
                              checks);
      testing::Steps steps(session);
      std::vector<double> losses;
      for (int step = 0; step < 2; ++step) {
        for (const auto purpose : {step::Purpose::loss, step::Purpose::gradient_norms, step::Purpose::train}) {
          losses.push_back(steps.run(purpose));
        }
      }
      return losses;
    };
    const std::vector<double> watched = run({.replay = true, .guard = true});
    const std::vector<double> plain = run({.replay = false, .guard = false});
    // With the guard, a read outside of a buffer's lifetime gives NaN or ends the process.
    EXPECT_EQ(watched, plain) << testing::text_of(options);
  }
}

// Destroying a session after an error elsewhere: in-flight steps end before their memory is freed.
TEST(SessionEnds, AfterInFlightSteps) {
  const models::Model model(testing::toy_description());
  const plan::LayoutChoices layout = make_test_layout({}, model);
  const auto device = make_cpu_device({.random_delay_s = 1e-3});
  const auto mesh = comm::make_self_mesh();
  step::StepOutput output;
  {
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
    testing::Steps steps(session);
    output = steps.enqueue(step::Purpose::train);
  }
  EXPECT_GT(output.result->loss_sum.value(), 0);
}

// Each step reports its own end, even if the host waits late and for several steps.
TEST(StepOutputs, ReportTheirOwnEnds) {
  using Clock = std::chrono::steady_clock;
  const models::Model model(testing::toy_description());
  const plan::LayoutChoices layout = make_test_layout({}, model);
  const auto device = make_cpu_device({.random_delay_s = 1e-3});
  const auto mesh = comm::make_self_mesh();
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
  testing::Steps steps(session);
  const Clock::time_point begun = Clock::now();
  const step::StepOutput first = steps.enqueue(step::Purpose::train), second = steps.enqueue(step::Purpose::train);
  session.synchronize();
  const Clock::time_point done = Clock::now();
  EXPECT_GT(*first.reached, begun);
  // Both steps do the same work; the first interval also includes the host's enqueueing.
  EXPECT_GT(*second.reached - *first.reached, (*first.reached - begun) / 10);
  EXPECT_LT(*second.reached, done);
}

// A plan of some work on two buffers of an arena, and a replay device that checks it.
class ReplayRejects : public ::testing::Test {
 protected:
  ReplayRejects() : cpu_(make_cpu_device()), arena_(*cpu_, kBytes), state_(*cpu_, 256) {
    step::MetaBuffers buffers(meta_);
    const auto stream = meta_.make_stream("compute");
    const TensorView a = buffers.get({step::Role::temp, 0, 0}, DType::f32, {kFloats});
    stream->launch({.name = "make", .kind = OpKind::copy, .accesses = {writes(a)}}, {});
    stream->record_event();
    plan_ = buffers.take();
    trace_ = meta_.take_trace();
    plan_.placement = program::place(trace_, plan_.buffers);
    replay_ = std::make_unique<step::ReplayDevice>(
        *cpu_, step::ReplaySetup{
                   .trace = &trace_, .buffers = &plan_, .arenas = {.device = arena_.data()}, .state = state_.data()});
    stream_ = replay_->make_stream("compute");
    replay_->begin_step();
  }
  TensorView view(std::int64_t at = 0) const { return {arena_.data() + at, DType::f32, {kFloats}, DeviceKind::cpu}; }

  static constexpr std::int64_t kFloats = 128, kBytes = 4096;
  std::unique_ptr<Device> cpu_;
  Arena arena_, state_;
  MetaDevice meta_;
  Trace trace_;
  step::BufferPlan plan_;
  std::unique_ptr<step::ReplayDevice> replay_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(ReplayRejects, OtherWork) {
  EXPECT_THROW(stream_->launch({.name = "other", .kind = OpKind::copy, .accesses = {writes(view())}}, [] {}),
               InternalError);
}
TEST_F(ReplayRejects, OtherAddresses) {
  EXPECT_THROW(stream_->launch({.name = "make", .kind = OpKind::copy, .accesses = {writes(view(256))}}, [] {}),
               InternalError);
}
TEST_F(ReplayRejects, AnotherOrder) {
  EXPECT_THROW(stream_->record_event(), InternalError);
}
TEST_F(ReplayRejects, TooLittle) {
  stream_->launch({.name = "make", .kind = OpKind::copy, .accesses = {writes(view())}}, [] {});
  EXPECT_THROW(replay_->end_step(), InternalError);
  stream_->synchronize();
}
TEST_F(ReplayRejects, TooMuch) {
  stream_->launch({.name = "make", .kind = OpKind::copy, .accesses = {writes(view())}}, [] {});
  stream_->record_event();
  replay_->end_step();
  EXPECT_THROW(stream_->record_event(), InternalError);
  stream_->synchronize();
}

TEST_F(ReplayRejects, AnAccessAfterTheLastUse) {
  float* data = view().data<float>();
  float seen = 0;
  stream_->launch({.name = "make", .kind = OpKind::copy, .accesses = {writes(view())}}, [&] {
    data[5] = 7.0f;
    seen = data[5];
  });
  stream_->synchronize();
  EXPECT_EQ(seen, 7.0f);
#if defined(__SANITIZE_ADDRESS__)
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(*const_cast<volatile float*>(data + 5) = 1.0f, "use-after-poison");
#else
  EXPECT_TRUE(std::isnan(data[5]));
#endif
}

TEST_F(ReplayRejects, AnAccessBeforeTheFirstUse) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(*const_cast<volatile float*>(view().data<float>()) = 1.0f, "use-after-poison");
#else
  EXPECT_TRUE(std::isnan(view().data<float>()[0]));
#endif
}

}  // namespace tight_test
}  // namespace hawser
