// Several groups of sequences whose passes are in flight over pipeline stages: what each sequence gets alone, on one
// rank.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <deque>

#include "generate/decoder.h"
#include "generate_case.h"
#include "one_rank.h"

namespace hawser {
namespace generate_groups_test {

using generate::Decoder;
using generate::Prompt;
using namespace testing::generation;

constexpr std::int64_t kTokens = 5;  // that each sequence gets
constexpr generate::CacheSize kSize{.sequences = 6, .positions = 310};

// The prompts, and one of two chunks.
std::vector<Prompt> with_a_long_one() {
  std::vector<Prompt> all = prompts();
  Prompt& longer = all.emplace_back();
  for (std::int32_t i = 0; i < generate::kChunkRows + 37; ++i) longer.ids.push_back(3 + i * 11 % 90);
  return all;
}

// Tensor ranks round sums elsewhere than one rank, of which the bound is for float32; the default of a GPU is bf16.
Recipe recipe_of(const Held& held) {
  Recipe recipe;
  if (held.tensor > 1) recipe.precision.compute = ComputePrecision::float32;
  return recipe;
}

std::int32_t greedy(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

// The tokens of a sequence. `logits`: those that each was chosen by, on the rank that chose.
struct Continuation {
  std::vector<std::int32_t> ids;
  std::vector<std::vector<float>> logits;
  auto fields() { return std::tie(ids, logits); }
};

Continuation alone(Decoder& decoder, const Prompt& prompt) {
  Continuation out;
  std::span<const float> logits = decoder.prefill(0, 0, prompt.ids);
  for (auto position = static_cast<std::int64_t>(prompt.ids.size());; ++position) {
    out.logits.emplace_back(logits.begin(), logits.end());
    out.ids.push_back(greedy(logits));
    if (out.ids.size() == kTokens) return out;
    const Decoder::NewToken token{0, position, out.ids.back()};
    decoder.decode({&token, 1});
    logits = decoder.logits(0);
  }
}

// Sequence i is in group i % groups. In its turn, a group gets the tokens of its pass and enqueues the next one.
class Groups {
 public:
  Groups(Decoder& decoder, const std::vector<Prompt>& prompts)
      : decoder_(decoder), prompts_(prompts), out_(prompts.size()) {}

  std::vector<Continuation> run() {
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      const std::span<const std::int32_t> ids = prompts_[i].ids;
      for (std::size_t at = 0; at < ids.size(); at += generate::kChunkRows) {
        const auto chunk = ids.subspan(at, std::min<std::size_t>(ids.size() - at, generate::kChunkRows));
        const bool last = at + chunk.size() == ids.size();
        wait_for_place();
        decoder_.enqueue(static_cast<std::int64_t>(i), static_cast<std::int64_t>(at), chunk,
                         last ? pick_of({i}) : Decoder::Pick());
        passes_.push_back(last ? std::vector{i} : std::vector<std::size_t>());
      }
    }
    const auto groups = std::min(prompts_.size(), static_cast<std::size_t>(decoder_.passes_in_flight()));
    for (std::int64_t round = 1; round < kTokens; ++round) {
      for (std::size_t group = 0; group < groups; ++group) turn(group, groups);
    }
    while (!passes_.empty()) retire();
    return out_;
  }

 private:
  void turn(std::size_t group, std::size_t groups) {
    const auto of_group = [&](const std::vector<std::size_t>& pass) {
      return std::ranges::any_of(pass, [&](std::size_t i) { return i % groups == group; });
    };
    while (std::ranges::any_of(passes_, of_group)) retire();
    std::vector<std::size_t> members;
    std::vector<Decoder::NewToken> tokens;
    for (std::size_t i = group; i < prompts_.size(); i += groups) {
      members.push_back(i);
      tokens.push_back({static_cast<std::int64_t>(i),
                        static_cast<std::int64_t>(prompts_[i].ids.size() + out_[i].ids.size()) - 1,
                        out_[i].ids.back()});
    }
    wait_for_place();
    decoder_.enqueue(tokens, pick_of(members), group == 1 ? 0 : static_cast<std::int64_t>(prompts_.size()));
    passes_.push_back(std::move(members));
  }

  Decoder::Pick pick_of(std::vector<std::size_t> members) {
    return [this, members = std::move(members)](std::int64_t i, std::span<const float> logits) {
      out_[members[static_cast<std::size_t>(i)]].logits.emplace_back(logits.begin(), logits.end());
      return greedy(logits);
    };
  }
  void wait_for_place() {
    while (decoder_.in_flight() == decoder_.passes_in_flight()) retire();
  }
  void retire() {
    const std::vector<std::int32_t> ids = decoder_.choose();
    ASSERT_EQ(ids.size(), passes_.front().size());
    for (std::size_t i = 0; i < ids.size(); ++i) out_[passes_.front()[i]].ids.push_back(ids[i]);
    passes_.pop_front();
  }

  Decoder& decoder_;
  const std::vector<Prompt>& prompts_;
  std::vector<Continuation> out_;
  std::deque<std::vector<std::size_t>> passes_;  // in flight: their sequences
};

bool chooses(const Held& held) {
  const int of_stage = the_world->size() / held.partition.stages;
  return the_world->rank().value() == of_stage * (held.partition.stages - 1);
}

void expect_equal(const std::vector<Continuation>& got, const std::vector<Continuation>& expected, const Held& held) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, expected[i].ids) << "sequence " << i << ", " << held.text();
    ASSERT_EQ(got[i].logits.size(), chooses(held) ? kTokens : 0) << held.text();
    for (std::size_t token = 0; token < got[i].logits.size(); ++token) {
      const std::vector<float>&a = got[i].logits[token], &b = expected[i].logits[token];
      double difference = 0, largest = 0;
      for (std::size_t k = 0; k < b.size(); ++k) {
        difference = std::max(difference, std::abs(double{a[k]} - b[k]));
        largest = std::max(largest, std::abs(double{b[k]}));
      }
      EXPECT_TRUE(held.tensor == 1 ? a == b : difference <= 5e-6 * largest)
          << "token " << token << " of sequence " << i << ", " << held.text() << ": " << difference;
    }
  }
}

std::vector<Continuation> expected_of(const std::vector<Prompt>& prompts, const Held& held) {
  return testing::on_one_rank([&] {
    const auto device = rank_device();
    engine::OpenModel whole = open_tiny("gqa");
    Decoder one(whole, recipe_of(held), {.sequences = 1, .positions = kSize.positions}, 1, *device);
    std::vector<Continuation> out;
    for (const Prompt& prompt : prompts) out.push_back(alone(one, prompt));
    return out;
  });
}

TEST(GenerateGroups, GetTheTokensAndLogitsOfOneRank) {
  const std::vector<Prompt> all = with_a_long_one();
  const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
  for (const Held& held : all_of(the_world->size())) {
    engine::OpenModel part = open_tiny("gqa", changes_of(held));
    Decoder decoder(part, recipe_of(held), kSize, 1, *device, {.replay = true, .guard = kRankDevice == DeviceKind::cpu},
                    ranks_of(held, 2));
    const bool virtual_stages = held.partition.chunks() > held.partition.stages;
    EXPECT_EQ(decoder.passes_in_flight(), virtual_stages ? 1 : held.partition.stages);
    expect_equal(Groups(decoder, all).run(), expected_of(all, held), held);
  }
}

Held staged() {
  return all_of(the_world->size())[the_world->size() == 2 ? 1 : 2];
}

TEST(GenerateGroups, PassesInFlightAreLimited) {
  if (the_world->size() != 2 && the_world->size() != 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  const Held held = staged();
  const auto device = rank_device();
  engine::OpenModel part = open_tiny("gqa");
  Decoder decoder(part, recipe_of(held), kSize, 1, *device, {}, ranks_of(held, 2));
  const std::vector<std::int32_t> ids{5, 6, 7};
  const auto pick = [](std::int64_t, std::span<const float>) { return 9; };
  EXPECT_THROW(decoder.choose(), InternalError) << "no pass in flight";
  for (std::int64_t slot = 0; slot < held.partition.stages; ++slot) decoder.enqueue(slot, 0, ids, pick);
  EXPECT_THROW(decoder.enqueue(5, 0, ids, pick), InternalError) << "more passes than stages";
  EXPECT_THROW(decoder.prefill(5, 0, ids), InternalError);
  EXPECT_EQ(decoder.choose(), std::vector<std::int32_t>{9});
  const Decoder::NewToken next{1, 3, 9}, free{0, 3, 9};
  EXPECT_THROW(decoder.enqueue({&next, 1}, pick), InternalError) << "its token is not known";
  EXPECT_THROW(decoder.enqueue(1, 2, ids, pick), InternalError) << "a chunk at another position";
  EXPECT_THROW(decoder.decode({&free, 1}), InternalError);
  const std::array twice{Decoder::NewToken{4, 3, 9}, Decoder::NewToken{4, 4, 9}};
  EXPECT_THROW(decoder.enqueue(twice, pick), InternalError) << "a slot twice";
  decoder.enqueue(1, 3, ids, pick);  // the prompt's next chunk
  decoder.drop();
  EXPECT_EQ(decoder.in_flight(), 0);
  decoder.decode({&free, 1});
}

// A token is chosen when the last stage has run the pass, not when the caller has enqueued as many as there are stages.
TEST(GenerateGroups, ATokenIsChosenWhenItsPassEnds) {
  if (the_world->size() != 4) GTEST_SKIP() << "mesh_4 runs it";
  const Held held = staged();
  const auto device = rank_device();
  engine::OpenModel part = open_tiny("gqa");
  Decoder decoder(part, recipe_of(held), kSize, 1, *device, {}, ranks_of(held, 2));
  int picked = 0;
  for (std::int32_t slot = 0; slot < 4; ++slot) {
    decoder.enqueue(slot, 0, std::vector{5 + slot}, [&](std::int64_t, std::span<const float>) { return ++picked; });
    EXPECT_EQ(picked, chooses(held) ? slot : 0);
  }
  for (std::int32_t slot = 0; slot < 4; ++slot) EXPECT_EQ(decoder.choose(), std::vector{1 + slot});
}

// After an error that all ranks have, and after passes without tokens, the ranks are still in step.
TEST(GenerateGroups, GoOnAfterAnError) {
  if (the_world->size() != 2 && the_world->size() != 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  const Held held = staged();
  const std::vector<Prompt> all = prompts();
  const auto device = rank_device();
  engine::OpenModel part = open_tiny("gqa");
  Decoder decoder(part, recipe_of(held), kSize, 1, *device, {}, ranks_of(held, 2));
  const std::vector<std::int32_t> ids{5, 6, 7};
  for (const int bad : {0, 1, -1}) {
    int chosen = 0;
    for (std::int64_t slot = 0; slot < held.partition.stages; ++slot) {
      decoder.enqueue(slot, 0, ids, [bad, slot](std::int64_t, std::span<const float>) -> std::int32_t {
        if (slot == bad) throw UserError(Problem{.what = "no"});
        return 9;
      });
    }
    try {
      while (chosen < 2) decoder.choose(), ++chosen;
      decoder.drop();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("no"), std::string::npos) << error.what();
    }
    EXPECT_EQ(chosen, bad < 0 ? 2 : bad) << "on every rank";
    EXPECT_EQ(decoder.in_flight(), 0);
  }
  expect_equal(Groups(decoder, all).run(), expected_of(all, held), held);
}

}  // namespace generate_groups_test
}  // namespace hawser
