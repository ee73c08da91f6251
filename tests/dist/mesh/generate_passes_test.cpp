// Passes of generation over pipeline stages: several are in flight, each in another stage.
#include <gtest/gtest.h>

#include <cstring>

#include "device/forwarding_device.h"
#include "engine/load_state.h"
#include "engine/rank_device.h"
#include "generate/decoder.h"
#include "generate_case.h"
#include "plan/cost_model.h"
#include "plan/plan.h"
#include "program/conversation.h"

namespace hawser {
namespace generate_passes_test {

using generate::Ranks;
using testing::generation::open_tiny;

// The tiny Llama has two blocks: the first of four stages has only the embedding, the last one only the head.
models::Partition stages_of(int stages) {
  if (stages == 2) return {.stages = 2, .ends = {1, 2}};
  return {.stages = 4, .ends = {0, 1, 2, 2}};
}

// The work of one stream begins late.
class SlowStream : public ForwardingDevice {
 public:
  SlowStream(Device& device, std::string name, double seconds, std::uint64_t seed)
      : ForwardingDevice(device),
        slow_(rank_device({.random_delay_s = seconds, .delay_seed = seed})),
        name_(std::move(name)) {}
  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return name == name_ ? slow_->make_stream(name) : inner_->make_stream(name);
  }

 private:
  std::shared_ptr<Device> slow_;
  std::string name_;
};

// Passes over one token of one sequence, which are enqueued without waiting.
class Passes {
 public:
  Passes(engine::OpenModel& model, const Ranks& ranks, Device& device, engine::SessionChecks checks = {}) {
    plan::Layout layout =
        generate::pass_layouts({}, *model.model, {.sequences = 1, .positions = kPositions}, 1, device.kind(), ranks)
            .front();
    mesh_ = engine::make_mesh(ranks.world, layout.mesh, 60.0, device);
    session_ = std::make_unique<engine::Session>(*model.model, layout, device, *mesh_,
                                                 std::vector{step::Purpose::logits}, std::nullopt, checks);
    engine::load_weights(*session_, model);
  }

  step::StepOutput enqueue(std::int32_t position) {
    auto batch = std::make_shared<step::HostBatch>();
    batch->ids = {3 + position * 7 % 90};
    batch->positions = batch->slot_mapping = {position};
    batch->diagonal = {0, 1, 0, position + 1, position, 0};
    batch->logit_positions = {0};
    batch->token_mask = {1};
    step::StepInput input;
    input.batches.push_back(std::move(batch));
    return session_->enqueue(step::Purpose::logits, input);
  }
  engine::Session& session() { return *session_; }
  int stage() const { return mesh_->place().pipeline; }

  static constexpr std::int32_t kPositions = 12;

 private:
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<engine::Session> session_;
};

// The first stage completes a pass that the last one has not begun. If it could not, this would not return.
TEST(GeneratePasses, AStageDoesNotWaitForTheStagesAfterTheNext) {
  if (the_world->size() != 4) GTEST_SKIP() << "mesh_4 runs it";
  const auto device = rank_device();
  engine::OpenModel model = open_tiny("gqa");
  Passes passes(model, {.world = the_world, .partition = stages_of(4)}, *device);
  step::StepOutput output;
  if (passes.stage() < 3) output = passes.enqueue(0);
  if (passes.stage() == 0) passes.session().wait(output.end);
  the_world->barrier();
  if (passes.stage() == 3) output = passes.enqueue(0);
  passes.session().wait(output.end);
  EXPECT_EQ(output.logits != nullptr, passes.stage() == 3);
  EXPECT_EQ(output.result->loss_sum.value(), 0);
}

// What a stage sends stays as it is until it is sent, although the next pass is enqueued before.
TEST(GeneratePasses, PassesInFlightDoNotChangeWhatIsStillSent) {
  const int stages = the_world->size();
  if (stages != 2 && stages != 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  const auto device = rank_device({.random_delay_s = 1e-4, .delay_seed = 3});
  SlowStream slow(*device, "send", 4e-3, 5);
  engine::OpenModel part = open_tiny("gqa"), whole = open_tiny("gqa");
  Passes cut(part, {.world = the_world, .partition = stages_of(stages)}, slow, {.replay = true, .guard = true}),
      one(whole, {}, *device);
  std::vector<step::StepOutput> outputs, expected;
  for (std::int32_t position = 0; position < Passes::kPositions; ++position) {
    outputs.push_back(cut.enqueue(position));
    expected.push_back(one.enqueue(position));
  }
  cut.session().synchronize();
  one.session().synchronize();
  if (cut.stage() + 1 < stages) return;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    ASSERT_EQ(outputs[i].logits->size(), expected[i].logits->size());
    EXPECT_EQ(std::memcmp(outputs[i].logits->data(), expected[i].logits->data(), 4 * expected[i].logits->size()), 0)
        << "pass " << i;
  }
}

models::Model of_blocks(int blocks) {
  return models::Model(testing::llama_description(
      {.width = 16, .heads = 2, .kv_heads = 1, .head_dim = 8, .inner = 24, .vocabulary = 40, .blocks = blocks}));
}

// The plans of the ranks at one place of all stages, which have `chunks` blocks each.
std::vector<plan::RankPlan> plans_of(const models::Model& model, int stages, int chunks, int shard) {
  Ranks ranks{.mesh = {.shard = shard}, .partition = {.stages = stages}};
  for (int block = 1; block <= stages * chunks; ++block) ranks.partition.ends.push_back(block);
  const plan::Layout layout =
      generate::pass_layouts({}, model, {.sequences = 2, .positions = 16}, 1, DeviceKind::cpu, ranks).back();
  return plan::plan_stages(model, layout, step::Purpose::logits, 0, /*optimizer=*/false);
}

// All ranks of a pass's collectives are in one stage. A step ends after what it sends, or its plan is rejected.
TEST(GeneratePasses, HaveNoCollectiveOverStages) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  for (int stages = 1; stages <= 8; ++stages) {
    for (const int chunks : {1, 2}) {
      if (stages == 1 && chunks > 1) continue;
      constexpr int kShard = 2;
      for (const plan::RankPlan& plan : plans_of(of_blocks(stages * chunks), stages, chunks, kShard)) {
        int collectives = 0, sends = 0;
        for (const TraceItem& item : plan.trace.items) {
          const CollectiveNote& note = item.record.collective;
          sends += note.kind == CollectiveKind::send ? 1 : 0;
          if (note.kind == CollectiveKind::none || note.kind == CollectiveKind::send ||
              note.kind == CollectiveKind::receive) {
            continue;
          }
          ++collectives;
          const plan::Members members = plan::members_of(note.communicator, 0);
          EXPECT_EQ(members.first / kShard, members.last / kShard) << note.communicator << " of " << stages;
        }
        EXPECT_GT(collectives, 0);
        EXPECT_EQ(sends, plan.stage + 1 == stages ? chunks - 1 : stages == 1 ? 0 : chunks);
      }
    }
  }
}

// Whether a rank refuses a step is decided by all stages together.
TEST(GeneratePasses, AreNotRefused) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  const models::Model model = of_blocks(2);
  const Ranks ranks{.mesh = {.shard = 2, .expert = 2}};
  plan::Layout layout = generate::pass_layouts({}, model, {}, 1, DeviceKind::cpu, ranks).front();
  EXPECT_NO_THROW(plan::plan_rank(model, layout, step::Purpose::logits, 0));
  layout.expert_row_bound = layout.expert_row_fallback = 2;
  try {
    plan::plan_rank(model, layout, step::Purpose::logits, 0);
    ADD_FAILURE() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("logits with a bound of expert rows"), std::string::npos) << error.what();
  }
}

// A token travels from the last stage to the first, between streams of their hosts.
constexpr const char* kTokens = "tokens";

TraceItem token_item(int stream, CollectiveKind kind) {
  TraceItem item{.stream = stream};
  item.record.name = kTokens;
  item.record.collective = {
      .kind = kind, .communicator = kTokens, .bytes = 4, .peer = kind == CollectiveKind::send ? 0 : 1};
  return item;
}

// The passes of `rounds` tokens of each of `groups` groups, as a stage enqueues them: a pass begins when the one before
// has ended, and on the first stage when the last one has ended the group's pass before.
Trace passes_of(const plan::RankPlan& plan, int stages, int groups, int rounds) {
  Trace all{.streams = plan.trace.streams, .items = {}};
  const auto streams = static_cast<int>(all.streams.size());
  all.streams.push_back("host");
  const auto wait_for_last = [&](int from, int to) {
    const int target = static_cast<int>(all.items.size()) - 1;
    for (int stream = from; stream < to; ++stream) {
      all.items.push_back({.kind = TraceItem::Kind::wait, .stream = stream, .target = target});
    }
  };
  for (int pass = 0; pass < rounds * groups; ++pass) {
    if (pass > 0) wait_for_last(0, streams + 1);
    if (stages > 1 && plan.stage == 0 && pass >= groups) {
      all.items.push_back(token_item(streams, CollectiveKind::receive));
      all.items.push_back({.kind = TraceItem::Kind::record_event, .stream = streams});
      wait_for_last(0, streams);
    }
    const auto first = static_cast<int>(all.items.size());
    for (TraceItem item : plan.trace.items) {
      if (item.target >= 0) item.target += first;
      all.items.push_back(std::move(item));
    }
    if (stages > 1 && plan.stage + 1 == stages && pass < (rounds - 1) * groups) {
      wait_for_last(streams, streams + 1);
      all.items.push_back(token_item(streams, CollectiveKind::send));
      all.items.push_back(plan.trace.items.back());  // the wait of the next pass is for the end of this one
    }
  }
  return all;
}

// With g groups over p stages, g <= p, the first token of the last group takes p + g - 1 passes' times of a stage, and
// p further ones give all groups a token.
TEST(GeneratePasses, EachRoundOfTheGroupsTakesOnePassOfEachStage) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  for (const int stages : {1, 2, 3, 4, 8}) {
    const std::vector<plan::RankPlan> plans = plans_of(of_blocks(stages), stages, 1, 1);
    for (const int groups : std::set{1, (stages + 1) / 2, stages}) {
      for (const int rounds : {1, 3}) {
        std::vector<Trace> traces;
        for (const plan::RankPlan& plan : plans) traces.push_back(passes_of(plan, stages, groups, rounds));
        std::vector<program::RankTrace> ranks;
        for (const Trace& trace : traces) ranks.push_back({.rank = static_cast<int>(ranks.size()), .trace = &trace});
        // A stage has one block.
        const std::vector<double> ends = program::end_times(ranks, [&](std::size_t rank, int item) {
          const TraceItem& at = traces[rank].items[static_cast<std::size_t>(item)];
          return std::string_view(at.record.name) == "attention_forward" ? 1.0 : 0.0;
        });
        EXPECT_NEAR(*std::ranges::max_element(ends), rounds * stages + groups - 1, 1e-9)
            << stages << " stages, " << groups << " groups, " << rounds << " rounds";
      }
    }
  }
}

}  // namespace generate_passes_test
}  // namespace hawser
