// Generation over tensor ranks and pipeline stages, with fillings of the seams for tests: the tokens of one rank.
#include "generate/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/testing/temporary_folder.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "mesh_world.h"
#include "plan/plan.h"
#include "plan/target.h"
#include "support/tensor_parallel.h"
#include "support/toy_slices.h"

namespace hawser {
namespace {

using generate::Answer;
using generate::Ranks;

// How the world's ranks hold the model.
struct Held {
  int tensor = 1, shard = 1;
  models::Partition partition = {};

  std::string text() const { return cat("tensor ", tensor, " shard ", shard, " stages ", partition.stages); }
};

std::vector<Held> all_of(int world) {
  const models::Partition two{.stages = 2, .ends = {1, 2}};
  if (world == 2) return {{.tensor = 2}, {.partition = two}, {.shard = 2}};
  if (world != 4) return {};
  return {{.tensor = 4},
          {.tensor = 2, .partition = two},
          {.partition = {.stages = 4, .ends = {0, 1, 2, 2}}},  // with only the embedding, and only the head
          {.tensor = 2, .partition = {.stages = 2, .ends = {0, 1, 1, 2}}},
          {.tensor = 2, .shard = 2}};
}

std::string folder(const std::string& name) {
  return cat(HAWSER_SOURCE_DIR, "/tests/golden/tiny/", name);
}

// This rank's slice. The vocabulary does not divide: the last rank has rows of padding.
models::ModelDescription slice_of(models::ModelDescription whole, int part, int parts) {
  models::ModelDescription slice = testing::part_of(whole, part, parts, {.vocabulary = true});
  const std::int64_t total = whole.embedding.vocabulary, own = total / parts + 1;
  slice.embedding.vocabulary_part = slice.head.vocabulary_part = {.begin = part * own, .total = total};
  slice.embedding.vocabulary = slice.head.vocabulary = own;
  return slice;
}

engine::ModelChanges changes_of(const Held& held) {
  if (held.tensor == 1) return {};
  const int part = comm::place_of(the_world->rank().value(), {.tensor = held.tensor}).tensor;
  return {.describe = [=](models::ModelDescription& d, Problems&) { d = slice_of(d, part, held.tensor); },
          .spec_of = [](const nn::Param& param) { return param.flat; }};
}

void fill_seams(nn::Seams& seams, comm::Mesh& mesh) {
  seams.redistribute = std::make_shared<testing::TensorParallel>(mesh.tensor());
  seams.tensor_reduce = std::make_shared<testing::TensorSums>(mesh.tensor());
}

Ranks ranks_of(const Held& held, std::int64_t kv_heads) {
  Ranks ranks{.world = the_world,
              .mesh = {.tensor = held.tensor,
                       .shard = held.shard,
                       .kv_copies = std::max(1, held.tensor / static_cast<int>(kv_heads))},
              .partition = held.partition};
  if (held.tensor > 1) ranks.replace_seams = fill_seams;
  return ranks;
}

// The key-value heads of a model's attention.
std::int64_t kv_heads_of(const std::string& name) {
  return name == "mqa" ? 1 : 2;
}

// Prompts of different lengths, more than there are slots, so that some begin while others run.
std::vector<generate::Prompt> prompts() {
  std::vector<generate::Prompt> out;
  for (const std::int64_t length : {1, 40, 9, 17, 3}) {
    const RandomStream random(7, static_cast<std::uint64_t>(length));
    generate::Prompt& prompt = out.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      prompt.ids.push_back(static_cast<std::int32_t>(3 + random.below(90, static_cast<std::uint64_t>(i))));
    }
  }
  return out;
}

std::vector<Answer> answers_of(const std::string& name, const Held* held, const generate::Sampling& sampling,
                               const std::vector<std::int64_t>& ends, bool cache_on_host = false) {
  Problems problems;
  generate::GenerateRequest request{.model = folder(name), .prompt_ids = {1}, .max_tokens = 14, .sampling = sampling};
  if (held != nullptr) {
    request.changes = changes_of(*held);
    request.ranks = ranks_of(*held, kv_heads_of(name));
  }
  request.cache_on_host = cache_on_host;
  auto input = generate::open_generation(request, problems);
  HAWSER_CHECK(problems.empty(), problems.lines());
  input->ends = ends;
  input->prompts = prompts();
  HAWSER_CHECK(input->size.on_host == cache_on_host, "the place of the KV cache");
  input->size = {.sequences = 3, .positions = 54, .on_host = cache_on_host};
  return generate::Generator(*input).answer_all();
}

TEST(Generate, AnswersOverRanksAreThoseOfOne) {
  const generate::Sampling greedy, sampled{.temperature = 0.9, .top_k = 40, .top_p = 0.95, .seed = 11};
  for (const std::string name : {"gqa", "mqa", "tied"}) {
    for (const generate::Sampling& sampling : {greedy, sampled}) {
      // The prompts end after different numbers of tokens.
      const std::vector<Answer> free = answers_of(name, nullptr, sampling, {});
      const std::vector<std::int64_t> ends{free[0].ids[4], free[1].ids[2], free[2].ids[9]};
      const std::vector<Answer> expected = answers_of(name, nullptr, sampling, ends);
      std::set<std::size_t> lengths;
      for (const Answer& answer : expected) lengths.insert(answer.ids.size());
      EXPECT_GE(lengths.size(), 3u) << name;
      for (const Held& held : all_of(the_world->size())) {
        const std::vector<Answer> answers = answers_of(name, &held, sampling, ends, name == "mqa");
        ASSERT_EQ(answers.size(), expected.size());
        for (std::size_t i = 0; i < answers.size(); ++i) {
          EXPECT_EQ(answers[i].ids, expected[i].ids) << name << ", prompt " << i << ", " << held.text();
          EXPECT_EQ(answers[i].end, expected[i].end);
        }
      }
    }
  }
}

// Each pass is the planned one; the logits of the last stage's ranks are those of one rank, and without tensor ranks
// not a bit differs.
TEST(Generate, LogitsOfTheLastStageAreThoseOfOneRank) {
  const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
  const auto open = [](const engine::ModelChanges& changes) {
    Problems problems;
    engine::OpenModel model = engine::open_trained_model(folder("gqa"), problems, changes);
    HAWSER_CHECK(problems.empty(), problems.lines());
    return model;
  };
  const generate::CacheSize size{.sequences = 2, .positions = 300};
  const std::vector<generate::Prompt> all = prompts();
  for (const Held& held : all_of(the_world->size())) {
    engine::OpenModel part = open(changes_of(held)), whole = open({});
    generate::Decoder cut(part, {}, size, 1, *device, {.replay = true}, ranks_of(held, 2)),
        one(whole, {}, size, 1, *device);
    const bool last = comm::place_of(the_world->rank().value(),
                                     {.tensor = held.tensor, .shard = held.shard, .pipeline = held.partition.stages})
                              .pipeline +
                          1 ==
                      held.partition.stages;
    EXPECT_EQ(cut.has_logits(), last);
    const auto compare = [&](std::span<const float> logits, std::span<const float> expected) {
      double difference = 0, largest = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        difference = std::max(difference, std::abs(double{logits[i]} - expected[i]));
        largest = std::max(largest, std::abs(double{expected[i]}));
      }
      EXPECT_LE(difference, held.tensor == 1 ? 0 : 5e-6 * largest) << held.text();
    };
    for (const std::int64_t slot : {0, 1}) {
      const std::vector<std::int32_t>& ids = all[static_cast<std::size_t>(slot)].ids;
      const auto logits = cut.prefill(slot, 0, ids), expected = one.prefill(slot, 0, ids);
      EXPECT_EQ(logits.empty(), !last);
      if (last) compare(logits, expected);
    }
    for (std::int64_t step = 0; step < 3; ++step) {
      const std::vector<generate::Decoder::NewToken> tokens{{1, 40 + step, 5}, {0, 1 + step, 7}};
      cut.decode(tokens);
      one.decode(tokens);
      for (const std::int64_t i : {0, 1}) {
        if (last) compare(cut.logits(i), one.logits(i));
      }
    }
    // The ranks' own choices differ; all get that of one.
    const std::vector<std::int32_t> chosen = cut.choose(2, [](std::int64_t i, std::span<const float>) {
      return 100 * the_world->rank().value() + static_cast<std::int32_t>(i);
    });
    const int chooser = the_world->size() / held.partition.stages * (held.partition.stages - 1);
    EXPECT_EQ(chosen, (std::vector<std::int32_t>{100 * chooser, 100 * chooser + 1}));
    EXPECT_THROW(
        cut.choose(
            1, [](std::int64_t, std::span<const float>) -> std::int32_t { throw UserError(Problem{.what = "no"}); }),
        Error)
        << "on every rank";
  }
}

// A rank that alone finds a problem does not leave the others waiting: all get the same problems and errors.
TEST(Generate, AllRanksLearnOfTheProblemsOfOne) {
  if (the_world->size() != 2) GTEST_SKIP() << "two ranks";
  const bool odd = the_world->rank() == Rank(1);
  const Held held{.partition = {.stages = 2, .ends = {1, 2}}};
  const auto request = [&] {
    return generate::GenerateRequest{.model = folder("gqa"), .prompt_ids = {1}, .ranks = ranks_of(held, 2)};
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
  const Held held{.partition = {.stages = 2, .ends = {1, 2}}};
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
      generate::pass_layouts({}, *open.model, {.sequences = 1, .positions = 64}, 1, DeviceKind::cpu, ranks_of(held, 2));
  std::int64_t needed = 0;
  for (const int stage : {0, 1}) {
    needed = std::max(needed, generate::planned_bytes(*open.model, layouts, stage) +
                                  plan::overhead_of(plan::load_target("cpu"), layouts.front().mesh, stage));
  }
  std::vector<std::int64_t> of_ranks;
  for (const std::string& of_rank : the_world->all_gather_strings(cat(needed))) of_ranks.push_back(std::stoll(of_rank));
  ASSERT_LT(of_ranks[0], of_ranks[1]);
  generate::GenerateRequest request{
      .model = folder("gqa"), .prompt_ids = {1}, .changes = changes, .ranks = ranks_of(held, 2)};
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

// A rank has the cache of its heads in its stage's layers.
TEST(Generate, TheCacheIsDividedByHeadsAndLayers) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const models::ModelDescription whole = testing::toy_description(true, 5);
  const generate::CacheSize size{.sequences = 4, .positions = 64};
  const auto cache_bytes = [&](int tensor, const models::Partition& partition, int stage) {
    const models::Model model(testing::part_of(whole, 0, tensor, {.vocabulary = true}),
                              [](const nn::Param& param) { return param.flat; });
    const Ranks ranks{.mesh = {.tensor = tensor, .kv_copies = testing::kv_copies(whole, tensor)},
                      .partition = partition,
                      .replace_seams = fill_seams};
    const plan::Layout layout = generate::pass_layouts({}, model, size, 1, DeviceKind::cpu, ranks).front();
    return plan::plan_rank(model, layout, step::Purpose::logits, comm::rank_of({.pipeline = stage}, layout.mesh))
        .kv_cache_bytes;
  };
  const std::int64_t all = cache_bytes(1, {}, 0), head = all / (5 * 2);
  const models::Partition three{.stages = 3, .ends = {2, 5, 5}};
  EXPECT_EQ(all, std::int64_t{5} * 2 * 2 * 4 * 64 * 10 * 4);
  EXPECT_EQ(cache_bytes(2, {}, 0), 5 * head);
  EXPECT_EQ(cache_bytes(4, {}, 0), 5 * head);  // two ranks have a copy of each of the two heads
  EXPECT_EQ(cache_bytes(1, three, 0), 2 * 2 * head);
  EXPECT_EQ(cache_bytes(1, three, 1), 3 * 2 * head);
  EXPECT_EQ(cache_bytes(1, three, 2), 0);
  EXPECT_EQ(cache_bytes(2, three, 1), 3 * head);
}

// All logits of passes over prompts of several lengths and chunks, of decoding, and of a sequence that restarts.
std::vector<float> logits_of(generate::Decoder& decoder) {
  std::vector<float> all;
  const auto keep = [&](std::int64_t i) {
    if (!decoder.has_logits()) return;
    const auto logits = decoder.logits(i);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const RandomStream random(3, "ids");
  std::vector<std::int32_t> ids;
  for (std::uint64_t i = 0; i < 300; ++i) ids.push_back(static_cast<std::int32_t>(3 + random.below(60, i)));
  const auto prefill = [&](std::int64_t slot, std::int64_t position, std::size_t count) {
    decoder.prefill(slot, position, std::span(ids).last(count));
    keep(0);
  };
  const auto decode = [&](const std::vector<generate::Decoder::NewToken>& tokens) {
    decoder.decode(tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) keep(static_cast<std::int64_t>(i));
  };
  prefill(2, 0, 300);
  prefill(0, 0, 9);
  prefill(1, 0, 1);
  decode({{2, 300, 5}, {0, 9, 6}, {1, 1, 7}});
  decode({{1, 2, 8}, {2, 301, 9}});
  prefill(0, 4, 8);  // drops the later ones
  decode({{0, 12, 10}});
  decode({{0, 13, 11}, {1, 3, 12}, {2, 302, 13}});
  return all;
}

// A model with more layers than there are copies of KV caches at a time; one has a window.
models::ModelDescription five_blocks() {
  models::ModelDescription description = testing::toy_description(true, 5);
  description.blocks.at(2).attention.window = 7;
  return description;
}

void write_weights(const std::string& folder) {
  std::vector<checkpoint::SafetensorsSpec> specs;
  for (const models::HfTensor& tensor : models::hf_tensors(models::Model(five_blocks()))) {
    specs.push_back({tensor.name, tensor.file_shape, DType::f32});
  }
  std::vector<float> values;
  checkpoint::write_safetensors(folder, specs, [&](const checkpoint::SafetensorsSpec& spec) {
    const RandomStream random(5, spec.name);
    values.resize(static_cast<std::size_t>(spec.shape.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(random.uniform(i) - 0.5);
    return TensorView(reinterpret_cast<std::byte*>(values.data()), DType::f32, spec.shape, DeviceKind::cpu);
  });
}

// The bits of a KV cache on the device. What is not copied to the device is NaN there.
TEST(Generate, CachesInHostMemoryChangeNothing) {
  if (the_world->size() > 4) GTEST_SKIP() << "fewer ranks are enough";
  const auto device = make_cpu_device({.random_delay_s = 1e-4, .delay_seed = 9});
  const TemporaryFolder weights;
  write_weights(weights.path("w"));
  std::vector<Held> all = all_of(the_world->size());
  if (all.empty()) all.push_back({});
  for (Held& held : all) {
    std::ranges::replace(held.partition.ends, 2, 5);
    const int part = comm::place_of(the_world->rank().value(), {.tensor = held.tensor}).tensor;
    std::vector<std::vector<float>> logits;
    for (const bool on_host : {false, true}) {
      models::ModelDescription own = five_blocks();
      if (held.tensor > 1) own = slice_of(std::move(own), part, held.tensor);
      Problems problems;
      engine::OpenModel model{.model = std::make_unique<models::Model>(std::move(own), changes_of(held).spec_of),
                              .weights = checkpoint::SafetensorsFolder::open(weights.path("w"), problems)};
      HAWSER_CHECK(problems.empty(), problems.lines());
      generate::Decoder decoder(model, {}, {.sequences = 3, .positions = 310, .on_host = on_host}, 1, *device,
                                {.replay = true, .guard = true}, ranks_of(held, 2));
      logits.push_back(logits_of(decoder));
      EXPECT_EQ(logits.back().empty(), !decoder.has_logits());
    }
    EXPECT_TRUE(std::ranges::equal(logits[0], logits[1])) << held.text();
  }
}

}  // namespace
}  // namespace hawser
