// Plans of the ranks of a group: equal where members rely on it.
#include "toy_training.h"

namespace hawser {
namespace {

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
  plan::Layout layout = testing::toy_layout({.shard = world}, model);
  std::vector<std::string> notes;
  const testing::Training training{.look = [&](engine::Session& session) { notes = session.notes(); }};
  const Trained equal = testing::train(model, layout, training);
  EXPECT_FALSE(different_plans(notes));
  if (the_world->rank() == Rank(1)) layout.prefetch = 3;
  const Trained different = testing::train(model, layout, training);
  EXPECT_TRUE(different_plans(notes));
  EXPECT_TRUE(different.after == equal.after);
}

}  // namespace
}  // namespace hawser
