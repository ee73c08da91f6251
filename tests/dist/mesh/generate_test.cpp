// Generation over tensor ranks and shards, with fillings of the seams for tests: the tokens of one rank.
#include "generate/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <stdexcept>

#include "base/testing/temporary_folder.h"
#include "generate_case.h"
#include "one_rank.h"
#include "plan/plan.h"
#include "plan/target.h"

namespace hawser {
namespace generate_test {

using generate::Answer;
using generate::Ranks;
using testing::MeshCase;
using namespace testing::generation;

// More prompts than slots, so that some begin while others run.
std::optional<generate::OpenGeneration> open_prompts(const std::string& name, const comm::MeshSizes* mesh,
                                                     const generate::Sampling& sampling,
                                                     const std::vector<std::int64_t>& ends) {
  Problems problems;
  generate::GenerateRequest request{.model = folder(name), .prompt_ids = {1}, .max_tokens = 14, .sampling = sampling};
  if (mesh != nullptr) {
    request.changes = changes_of(*mesh);
    request.ranks = ranks_of(*mesh);
  }
  auto input = generate::open_generation(request, problems);
  HAWSER_CHECK(problems.empty(), problems.lines());
  input->ends = ends;
  input->prompts = prompts(9);
  input->size = {.sequences = 5, .positions = 54};
  return input;
}

void expect_equal(const std::vector<Answer>& answers, const std::vector<Answer>& expected) {
  ASSERT_EQ(answers.size(), expected.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].ids, expected[i].ids) << "prompt " << i;
    EXPECT_EQ(answers[i].end, expected[i].end) << "prompt " << i;
  }
}

// What `answers` returns, computed on one rank.
template <class F>
std::vector<Answer> answers_of_one_rank(const F& answers) {
  using Parts = std::tuple<std::vector<std::int32_t>, std::string, Answer::End>;
  std::vector<Answer> out;
  for (const auto& [ids, text, end] : testing::on_one_rank([&] {
         std::vector<Parts> parts;
         for (const Answer& answer : answers()) parts.emplace_back(answer.ids, answer.text, answer.end);
         return parts;
       })) {
    out.push_back({.ids = ids, .text = text, .end = end});
  }
  return out;
}

struct AnswerCase {
  std::string model;
  bool sampled = false;  // with a temperature; else greedy
  MeshCase on;

  std::string name() const { return testing::joined(model, sampled ? "sampled" : "greedy", on.name()); }
  friend void PrintTo(const AnswerCase& c, std::ostream* out) { *out << c.name(); }
};

using GeneratedAnswers = testing::CaseTest<AnswerCase>;

TEST_P(GeneratedAnswers, AreThoseOfOneRank) {
  const AnswerCase& c = GetParam();
  const generate::Sampling greedy, sampled{.temperature = 0.9, .top_k = 40, .top_p = 0.95, .seed = 11};
  const auto answers_of = [&](const comm::MeshSizes* mesh, const std::vector<std::int64_t>& ends) {
    auto input = open_prompts(c.model, mesh, c.sampled ? sampled : greedy, ends);
    generate::Generator generator(*input);
    return generator.answer_all();
  };
  static std::map<std::pair<std::string, bool>, std::pair<std::vector<std::int64_t>, std::vector<Answer>>> references;
  auto& [ends, expected] = references[{c.model, c.sampled}];
  if (expected.empty()) {
    // The prompts end after different numbers of tokens.
    const std::vector<Answer> free = answers_of_one_rank([&] { return answers_of(nullptr, {}); });
    ends = {free[0].ids[4], free[1].ids[2], free[2].ids[9]};
    expected = answers_of_one_rank([&, &ends = ends] { return answers_of(nullptr, ends); });
    std::set<std::size_t> lengths;
    for (const Answer& answer : expected) lengths.insert(answer.ids.size());
    EXPECT_GE(lengths.size(), 3u);
  }
  expect_equal(answers_of(&c.on.mesh, ends), expected);
}

std::vector<AnswerCase> every_model() {
  std::vector<AnswerCase> out;
  for (const char* const model : {"gqa", "mqa", "tied"}) {
    for (const bool sampled : {false, true}) {
      for (const MeshCase& c : generation_meshes()) out.push_back({model, sampled, c});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Models, GeneratedAnswers, ::testing::ValuesIn(every_model()), testing::CaseName());

using Generation = testing::CaseTest<MeshCase>;

// A listener ends the generation on every rank. The ranks are in step afterwards, and slots have what earlier answers
// have left.
TEST_P(Generation, AnswersAfterAnInterruption) {
  const comm::MeshSizes& mesh = GetParam().mesh;
  const std::vector<Answer> expected = answers_of_one_rank([] {
    auto whole = open_prompts("gqa", nullptr, {}, {});
    return generate::Generator(*whole).answer_all();
  });
  auto input = open_prompts("gqa", &mesh, {}, {});
  generate::Generator generator(*input);
  for (const int passes : {1, 7, 20}) {
    int seen = 0;
    const auto stop = [&](const generate::Counts&) {
      if (++seen == passes) throw std::runtime_error("enough");
    };
    EXPECT_THROW(generator.answer_all({.token = {}, .answer = {}, .progress = stop}), std::runtime_error);
  }
  expect_equal(generator.answer_all(), expected);
  // A prompt that begins with an answered one, alone.
  generate::Prompt longer = input->prompts[0];
  const std::size_t known = longer.ids.size();
  longer.ids.insert(longer.ids.end(), expected[0].ids.begin(), expected[0].ids.begin() + 6);
  expect_equal({generator.answer(input->prompts[0], 0, 0)}, {expected[0]});
  const std::vector<std::int32_t> ids = generator.answer(longer, known + 2, 0).ids;
  EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + 8, expected[0].ids.begin() + 6));
}

// Each pass is the planned one, and its logits are those of one rank; without tensor ranks not a bit differs.
TEST_P(Generation, HasTheLogitsOfOneRank) {
  const comm::MeshSizes& mesh = GetParam().mesh;
  const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
  const generate::CacheSize size{.sequences = 2, .positions = 310};
  generate::Prompt two_chunks;
  for (std::int32_t i = 0; i < generate::kChunkRows + 37; ++i) two_chunks.ids.push_back(3 + i * 11 % 90);
  const std::vector<generate::Prompt> all{prompts().front(), two_chunks};
  engine::OpenModel part = open_tiny("gqa", changes_of(mesh)), whole = open_tiny("gqa");
  generate::Decoder cut(part, {}, size, 1, *device, {.replay = true, .guard = true}, ranks_of(mesh)),
      one(whole, {}, size, 1, *device);
  const auto compare = [&](std::span<const float> logits, std::span<const float> expected) {
    ASSERT_EQ(logits.size(), expected.size());
    double difference = 0, largest = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      difference = std::max(difference, std::abs(double{logits[i]} - expected[i]));
      largest = std::max(largest, std::abs(double{expected[i]}));
    }
    EXPECT_LE(difference, mesh.tensor == 1 ? 0 : 5e-6 * largest);
  };
  std::vector<std::int64_t> ends;
  for (const std::int64_t slot : {0, 1}) {
    const std::vector<std::int32_t>& ids = all[static_cast<std::size_t>(slot)].ids;
    compare(cut.prefill(slot, 0, ids), one.prefill(slot, 0, ids));
    ends.push_back(static_cast<std::int64_t>(ids.size()));
  }
  for (std::int64_t step = 0; step < 3; ++step) {
    const std::vector<generate::Decoder::NewToken> tokens{{1, ends[1] + step, 5}, {0, ends[0] + step, 7}};
    cut.decode(tokens);
    one.decode(tokens);
    for (const std::int64_t i : {0, 1}) compare(cut.logits(i), one.logits(i));
  }
  // An error of the rank that chooses is that of all. They are in step afterwards: choices of ranks differ, and all
  // get those of one.
  const auto no = [](std::int64_t, std::span<const float>) -> std::int32_t { throw UserError(Problem{.what = "no"}); };
  EXPECT_THROW(cut.choose(no), Error);
  const auto own = [](std::int64_t i, std::span<const float>) {
    return 100 * (1 + the_world->rank().value()) + static_cast<std::int32_t>(i);
  };
  EXPECT_EQ(cut.choose(own), (std::vector<std::int32_t>{100, 101}));
}
INSTANTIATE_TEST_SUITE_P(Meshes, Generation, ::testing::ValuesIn(generation_meshes()), testing::CaseName());

// A rank that alone finds a problem does not leave the others waiting: all get the same problems and errors.
TEST(Generate, AllRanksLearnOfTheProblemsOfOne) {
  if (the_world->size() != 2) GTEST_SKIP() << "two ranks";
  const bool odd = the_world->rank() == Rank(1);
  const comm::MeshSizes mesh{.shard = 2};
  const auto request = [&] {
    return generate::GenerateRequest{.model = folder("gqa"), .prompt_ids = {1}, .ranks = ranks_of(mesh)};
  };
  const auto expect_problem = [&](const generate::GenerateRequest& of, const std::string& part) {
    Problems problems;
    EXPECT_FALSE(generate::open_generation(of, problems).has_value());
    ASSERT_EQ(problems.size(), 1u) << problems.lines();
    EXPECT_NE(problems.lines().find(part), std::string::npos) << problems.lines();
  };
  auto no_model = request();
  if (odd) no_model.model = "/no/such/model";
  expect_problem(no_model, "/no/such/model");
  auto beyond = request();
  if (odd) beyond.prompt_ids = {1'000'000};
  expect_problem(beyond, "1000000");
  auto others = request();
  if (odd) others.prompt_ids = {1, 2};
  expect_problem(others, "ranks read different prompts");
  // An error that is no problem.
  auto broken = request();
  broken.changes.describe = [&](models::ModelDescription&, Problems&) {
    if (odd) throw Error(ExitCode::no_progress, "broken");
  };
  Problems problems;
  try {
    generate::open_generation(broken, problems);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::no_progress);
    EXPECT_STREQ(error.what(), "broken");
  }
  EXPECT_TRUE(problems.empty());
}

// The memory of the rank that needs the most decides for all.
TEST(Generate, AllRanksRejectWhatDoesNotFitOne) {
  if (the_world->size() != 2) GTEST_SKIP() << "two ranks";
  const comm::MeshSizes mesh{.shard = 2};
  // The second rank has much padding in its flats.
  const engine::ModelChanges changes{.spec_of = [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    if (the_world->rank() == Rank(1)) spec.grain = 1 << 14;
    return spec;
  }};
  Problems problems;
  const engine::OpenModel open = engine::open_trained_model(folder("gqa"), problems, changes);
  ASSERT_TRUE(problems.empty()) << problems.lines();
  const std::vector<plan::Layout> layouts =
      generate::pass_layouts({}, *open.model, {.sequences = 1, .positions = 64}, 1, DeviceKind::cpu, ranks_of(mesh));
  const std::int64_t needed = generate::planned_memory(*open.model, layouts).device +
                              plan::overhead_of(plan::load_target("cpu"), layouts.front().mesh, /*stage=*/0);
  std::vector<std::int64_t> of_ranks;
  for (const std::string& of_rank : the_world->all_gather_strings(cat(needed))) of_ranks.push_back(std::stoll(of_rank));
  ASSERT_LT(of_ranks[0], of_ranks[1]);
  generate::GenerateRequest request{
      .model = folder("gqa"), .prompt_ids = {1}, .changes = changes, .ranks = ranks_of(mesh)};
  request.recipe.memory.capacity = Bytes(of_ranks[1]);
  EXPECT_TRUE(generate::open_generation(request, problems).has_value());
  request.recipe.memory.capacity = Bytes(of_ranks[1] - 1);
  try {
    generate::open_generation(request, problems);
    ADD_FAILURE() << "accepted by rank " << the_world->rank().value();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find(cat("got ", of_ranks[1], " bytes")), std::string::npos) << error.what();
  }
}

// A rank has the cache of its heads.
TEST(Generate, TheCacheIsDividedByHeads) {
  const models::ModelDescription whole = testing::divisible(testing::toy_description(true, 5));
  const auto cache_bytes = [&](int tensor) {
    const models::Model model(whole, nn::common_domain, {.tensor = {.count = tensor}});
    const Ranks ranks{.mesh = {.tensor = tensor}};
    const generate::CacheSize size{.sequences = 4, .positions = 64};
    const plan::Layout layout = generate::pass_layouts({}, model, size, 1, DeviceKind::cpu, ranks).front();
    return plan::plan_rank(model, layout, step::Purpose::logits, 0).kv_cache_bytes;
  };
  const std::int64_t all = cache_bytes(1), head = all / 2;
  EXPECT_EQ(all, std::int64_t{5} * 2 * 2 * 4 * 64 * 10 * 4);
  EXPECT_EQ(cache_bytes(2), head);
  EXPECT_EQ(cache_bytes(4), head);  // two ranks have a copy of each of the two heads
}

// Decoder runs no pass again, and all ranks have logits.
TEST(Generate, RefusedPassesAndPipelineStagesAreRejected) {
  const models::Model model(testing::toy_description(true));
  plan::Layout layout =
      generate::pass_layouts({}, model, {}, 1, DeviceKind::cpu, {.mesh = {.shard = 2, .expert = 2}}).front();
  layout.token_exchange = testing::exchange_in_pieces(1);
  EXPECT_NO_THROW(plan::plan_rank(model, layout, step::Purpose::logits, 0));
  const auto expect_rejected = [&](const plan::LayoutChoices& rejected, const std::string& part) {
    try {
      plan::plan_rank(model, plan::derive(rejected, model), step::Purpose::logits, 0);
      ADD_FAILURE() << "accepted";
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  plan::LayoutChoices bounded = layout;
  bounded.expert_row_bound = bounded.expert_row_fallback = 2;
  expect_rejected(bounded, "logits with a bound of expert rows");
  plan::LayoutChoices staged = layout;
  staged.partition = {.stages = 2, .ends = {1, 2}};
  expect_rejected(staged, "logits over pipeline stages");
}

}  // namespace generate_test
}  // namespace hawser
