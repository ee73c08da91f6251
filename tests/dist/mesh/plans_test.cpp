// Plans of the ranks of a group: equal where members rely on it.
#include "plan/shared_plan.h"
#include "toy_training.h"

namespace hawser {
namespace plans_test {

using testing::Trained;

bool different_plans(const std::vector<std::string>& notes) {
  return std::ranges::any_of(notes, [](const std::string& note) { return note.ends_with("have different plans"); });
}

// A rank with another prefetch has its buffers elsewhere. A member that fetched from its memory would read other bytes:
// the groups say so and send instead, with the same results.
TEST(Plans, RanksWithOtherOffsetsDoNotFetch) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs two ranks or more";
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.mesh = {.shard = world}}, model);
  std::vector<std::string> notes;
  const testing::Training training{.look = [&](engine::Session& session) { notes = session.notes(); }};
  const Trained equal = testing::train(model, layout, training);
  EXPECT_FALSE(different_plans(notes));
  if (the_world->rank() == Rank(1)) layout.prefetch = 3;
  const Trained different = testing::train(model, layout, training);
  EXPECT_TRUE(different_plans(notes));
  EXPECT_TRUE(different.after == equal.after);
}

// The first rank plans for all pipeline stages and sends the plans; each rank has what it would have planned itself.
TEST(Plans, TheFirstRankMakesThemForAll) {
  const int world = the_world->size(), stages = std::min(world, 2);
  const models::Model model(testing::toy_description());
  plan::LayoutChoices choices = testing::toy_layout({.mesh = {.shard = world / stages}}, model);
  if (stages == 2) choices.partition = {.stages = 2, .ends = {1, 2}};
  const plan::Layout layout = plan::derive(choices, model);
  const auto mesh = rank_mesh(layout.mesh);
  const auto device = rank_device();
  const step::Purpose purpose = step::Purpose::train;
  // With replay, as under AddressSanitizer, each rank would plan itself.
  const engine::SessionChecks none{.replay = false, .guard = false};
  const engine::Session session(model, layout, *device, *mesh, {purpose, step::Purpose::loss}, std::nullopt, none);
  const plan::RankPlan& sent = session.plan(purpose);
  EXPECT_EQ(sent.trace.items.empty(), the_world->rank() != Rank(0));
  const plan::RankPlan own = plan::plan_rank(model, layout, purpose, the_world->rank().value());
  EXPECT_EQ(sent.bytes(), own.bytes());
  EXPECT_EQ(sent.saved_bytes, own.saved_bytes);
  EXPECT_EQ(sent.offset_hashes, own.offset_hashes);
  EXPECT_EQ(sent.buffers.index.size(), own.buffers.index.size());
  for (const auto& [key, i] : own.buffers.index) {
    const int there = sent.buffers.index.at(key);
    EXPECT_EQ(sent.buffers.placement.offsets[static_cast<std::size_t>(there)],
              own.buffers.placement.offsets[static_cast<std::size_t>(i)])
        << key.text();
  }
}

TEST(Plans, AreRejectedByARankWithAnotherProgram) {
  const models::Model model(testing::toy_description());
  const plan::LayoutChoices layout = testing::toy_layout({}, model);
  const step::Purpose purpose = step::Purpose::train;
  const std::string text = plan::plan_text(plan::plan_rank(model, plan::derive(layout, model), purpose, 0));
  const auto program = [&](const plan::LayoutChoices& of) {
    return step::make_program(model, plan::schedule_options(plan::derive(of, model), purpose));
  };
  EXPECT_EQ(plan::plan_text(plan::read_plan(text, purpose, program(layout))), text);
  plan::LayoutChoices other = layout;
  other.micro_batches = 2;
  EXPECT_THROW(plan::read_plan(text, purpose, program(other)), InternalError);
  EXPECT_THROW(plan::read_plan(text.substr(0, text.size() / 2), purpose, program(layout)), InternalError);
}

}  // namespace plans_test
}  // namespace hawser
