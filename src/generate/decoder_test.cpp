// Passes with a KV cache against full forward passes.
#include "generate/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "batches/micro_batch.h"
#include "engine/feed.h"
#include "generate/open.h"
#include "plan/target.h"

namespace hawser::generate {
namespace decoder_test {

namespace fs = std::filesystem;

std::string tiny(const std::string& name) {
  return (fs::path(testing::kSourceFolder) / "tests/golden/tiny" / name).string();
}

engine::OpenModel open(const std::string& name) {
  Problems problems;
  engine::OpenModel model = engine::open_trained_model(tiny(name), problems);
  HAWSER_CHECK(problems.empty(), problems.lines());
  return model;
}

std::vector<std::int32_t> some_ids(std::int64_t count, std::int64_t vocabulary, std::uint64_t seed) {
  const RandomStream random(seed, "ids");
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary), static_cast<std::uint64_t>(i))));
  }
  return ids;
}

// Reference: logits after any number of tokens, by one pass over all of them without a KV cache.
class WholeForward {
 public:
  WholeForward(engine::OpenModel& model, std::int64_t rows, Device& device) : mesh_(comm::make_self_mesh()) {
    Recipe recipe;
    recipe.data.sequence_length = rows;
    recipe.data.max_documents = 1;
    recipe.train.global_batch_size = recipe.train.micro_batch_size = 1;
    const plan::Layout layout = plan::make_layout(recipe, *model.model, 1, DType::f32, 1, device.kind());
    shape_ = layout.batch;
    session_ = std::make_unique<engine::Session>(*model.model, layout, device, *mesh_,
                                                 std::vector<step::Purpose>{step::Purpose::logits});
    if (model.checkpoint) HAWSER_CHECK(false, "a folder was expected");
    session_->load(*model.weights, 0);
  }

  std::vector<float> operator()(std::span<const std::int32_t> ids) {
    const auto length = static_cast<std::int32_t>(ids.size());
    batches::Sequence sequence{.ids = {ids.begin(), ids.end()}, .document_lengths = {length}};
    sequence.labels.assign(ids.size(), prepare::kIgnoredLabel);
    sequence.positions = batches::positions_of(sequence.document_lengths);
    auto batch = engine::to_host_batch(batches::make_micro_batch({&sequence, 1}, shape_, 0), shape_);
    batch->logit_positions = {length - 1};
    step::StepInput input;
    input.batches.push_back(batch);
    const step::StepOutput output = session_->enqueue(step::Purpose::logits, input);
    session_->synchronize();
    return *output.logits;
  }

 private:
  std::unique_ptr<comm::Mesh> mesh_;
  batches::BatchShape shape_;
  std::unique_ptr<engine::Session> session_;
};

// The largest difference, relative to the largest logit.
double distance(std::span<const float> a, const std::vector<float>& b) {
  double max = 0, largest = 0;
  HAWSER_CHECK(a.size() == b.size(), a.size(), " logits and ", b.size());
  for (std::size_t i = 0; i < a.size(); ++i) max = std::max(max, std::abs(static_cast<double>(a[i]) - b[i]));
  for (const float x : b) largest = std::max(largest, std::abs(static_cast<double>(x)));
  return max / largest;
}

constexpr double kBound = 5e-6;

TEST(Decoder, PromptsOfEveryLengthAroundTheChunksBorders) {
  const auto device = make_cpu_device();
  for (const std::string name : {"gqa", "everything"}) {
    engine::OpenModel model = open(name);
    const std::int64_t longest = 2 * kChunkRows + 3, vocabulary = model.model->vocabulary();
    Decoder decoder(model, {}, {.sequences = 2, .positions = longest + 2}, 1, *device);
    WholeForward full(model, longest + 2, *device);
    const std::vector<std::int32_t> ids = some_ids(longest + 2, vocabulary, 5);
    double worst = 0;
    for (const std::int64_t length : {1L,   2L,   7L,   8L,   9L,   15L,  16L,  17L,  33L,  64L,  65L,
                                      128L, 255L, 256L, 257L, 258L, 264L, 265L, 511L, 512L, 513L, 515L}) {
      const auto prompt = std::span(ids).first(static_cast<std::size_t>(length));
      worst = std::max(worst, distance(decoder.prefill(length % 2, 0, prompt), full(prompt)));
      // Two more tokens, one at a time.
      for (std::int64_t more = length; more < length + 2; ++more) {
        const Decoder::NewToken token{length % 2, more, ids[static_cast<std::size_t>(more)]};
        decoder.decode({&token, 1});
        worst = std::max(worst,
                         distance(decoder.logits(0), full(std::span(ids).first(static_cast<std::size_t>(more + 1)))));
      }
    }
    EXPECT_LT(worst, kBound) << name;
    EXPECT_GT(worst, 0) << name << ": the same program twice?";
    RecordProperty(name, cat(worst));
    std::printf("%s: maximum difference of logits %.1e of the largest\n", name.c_str(), worst);
  }
}

// The odd blocks have a window, or scores that are soft-capped and biased by distance. Greedy continuations from the
// cache equal full forward passes.
TEST(Decoder, WindowsOverTheCacheEqualFullPasses) {
  const auto device = make_cpu_device();
  constexpr std::int64_t kLongest = kChunkRows + 12;
  for (const std::int64_t window :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, kChunkRows, kChunkRows + 1, 2 * kLongest}) {
    engine::OpenModel model = open("gqa");
    models::ModelDescription description = model.model->description();
    for (std::size_t b = 1; b < description.blocks.size(); b += 2) {
      nn::AttentionConfig& attention = description.blocks[b].attention;
      attention.window = window;
      if (window == 0 || window == kChunkRows) {
        attention.softcap = 0.5;
        attention.alibi = true;
      }
    }
    model.model = std::make_unique<models::Model>(std::move(description));
    Decoder decoder(model, {}, {.sequences = 1, .positions = kLongest}, 1, *device);
    WholeForward full(model, kLongest, *device);
    const std::vector<std::int32_t> ids = some_ids(kLongest, model.model->vocabulary(), 5);
    for (const std::int64_t length : {std::int64_t{1}, std::int64_t{6}, kChunkRows - 1, kChunkRows + 3}) {
      std::vector<std::int32_t> tokens(ids.begin(), ids.begin() + length);
      std::vector<float> expected = full(tokens);
      std::span<const float> logits = decoder.prefill(0, 0, tokens);
      for (int more = 0; more < 8; ++more) {
        ASSERT_LT(distance(logits, expected), kBound) << "window " << window << ", " << tokens.size() << " tokens";
        const auto greedy = std::max_element(expected.begin(), expected.end()) - expected.begin();
        ASSERT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), greedy);
        const Decoder::NewToken token{0, length + more, static_cast<std::int32_t>(greedy)};
        decoder.decode({&token, 1});
        tokens.push_back(token.id);
        logits = decoder.logits(0);
        expected = full(tokens);
      }
    }
  }
}

// Sequences of different lengths in one batch, with slots reused in another order, give the logits of each sequence
// alone.
TEST(Decoder, SequencesOfABatchAreIndependent) {
  const auto device = make_cpu_device({.threads = 2});
  engine::OpenModel model = open("gqa");
  const std::int64_t vocabulary = model.model->vocabulary();
  constexpr std::int64_t kLengths[] = {1, 40, 9, 3, 300};
  std::vector<std::vector<std::int32_t>> ids;
  for (const std::int64_t length : kLengths) ids.push_back(some_ids(length + 6, vocabulary, 60 + length));
  WholeForward full(model, 306, *device);

  // Alone: one slot.
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<float>> alone;
  {
    Decoder decoder(model, {}, {.sequences = 1, .positions = 306}, 1, *device);
    for (std::size_t s = 0; s < ids.size(); ++s) {
      const std::int64_t length = kLengths[s];
      auto logits = decoder.prefill(0, 0, std::span(ids[s]).first(static_cast<std::size_t>(length)));
      alone[{s, length}] = {logits.begin(), logits.end()};
      for (std::int64_t at = length; at < length + 6; ++at) {
        const Decoder::NewToken token{0, at, ids[s][static_cast<std::size_t>(at)]};
        decoder.decode({&token, 1});
        alone[{s, at + 1}] = {decoder.logits(0).begin(), decoder.logits(0).end()};
      }
    }
  }
  for (const auto& [key, logits] : alone) {
    const auto until = std::span(ids[key.first]).first(static_cast<std::size_t>(key.second));
    EXPECT_LT(distance(logits, full(until)), kBound) << "sequence " << key.first << ", " << key.second << " tokens";
  }

  Decoder decoder(model, {}, {.sequences = 3, .positions = 306}, 2, *device);
  const auto check = [&](std::size_t s, std::int64_t tokens, std::span<const float> logits) {
    const std::vector<float>& expected = alone.at({s, tokens});
    EXPECT_TRUE(std::equal(logits.begin(), logits.end(), expected.begin(), expected.end()))
        << "sequence " << s << ", " << tokens << " tokens: " << distance(logits, expected);
  };
  const auto begin = [&](std::size_t s, std::int64_t slot) {
    check(s, kLengths[s], decoder.prefill(slot, 0, std::span(ids[s]).first(static_cast<std::size_t>(kLengths[s]))));
  };
  std::vector<std::int64_t> at(std::begin(kLengths), std::end(kLengths));
  const auto step = [&](const std::vector<std::pair<std::size_t, std::int64_t>>& running) {
    std::vector<Decoder::NewToken> tokens;
    for (const auto& [s, slot] : running) tokens.push_back({slot, at[s], ids[s][static_cast<std::size_t>(at[s])]});
    decoder.decode(tokens);
    for (std::size_t i = 0; i < running.size(); ++i) {
      check(running[i].first, ++at[running[i].first], decoder.logits(static_cast<std::int64_t>(i)));
    }
  };
  begin(0, 0);
  begin(4, 1);
  step({{0, 0}, {4, 1}});
  begin(1, 2);
  step({{0, 0}, {4, 1}, {1, 2}});
  step({{1, 2}, {0, 0}});
  begin(2, 1);  // the slot of the longest
  step({{2, 1}, {1, 2}, {0, 0}});
  begin(3, 0);
  for (int i = 0; i < 3; ++i) step({{3, 0}, {2, 1}, {1, 2}});
}

// A sequence may continue from an earlier position; later positions are then dropped.
TEST(Decoder, ASequenceContinuesFromAnyPosition) {
  const auto device = make_cpu_device();
  engine::OpenModel model = open("mqa");
  Decoder decoder(model, {}, {.sequences = 1, .positions = 80}, 1, *device);
  WholeForward full(model, 80, *device);
  std::vector<std::int32_t> ids = some_ids(80, model.model->vocabulary(), 1);
  decoder.prefill(0, 0, ids);
  const std::vector<std::int32_t> other = some_ids(20, model.model->vocabulary(), 2);
  std::copy(other.begin(), other.end(), ids.begin() + 30);
  const auto logits = decoder.prefill(0, 30, other);
  EXPECT_LT(distance(logits, full(std::span(ids).first(50))), kBound);
}

// The rows of a pass are in the slots of the cache, each once, and only they have logits.
TEST(Decoder, RejectsRowsOutsideOfAPass) {
  const auto device = make_cpu_device();
  engine::OpenModel model = open("gqa");
  Decoder decoder(model, {}, {.sequences = 4, .positions = 8}, 1, *device);
  EXPECT_THROW(decoder.logits(0), InternalError) << "no pass yet";
  EXPECT_THROW(decoder.prefill(0, 0, {}), InternalError);
  EXPECT_THROW(decoder.prefill(4, 0, std::vector{5}), InternalError);
  EXPECT_THROW(decoder.prefill(0, 6, std::vector{5, 6, 7}), InternalError);
  EXPECT_THROW(decoder.decode(std::vector<Decoder::NewToken>{{1, 3, 9}, {1, 4, 9}}), InternalError) << "a slot twice";
  decoder.decode(std::vector<Decoder::NewToken>{{1, 0, 9}, {3, 0, 9}, {0, 0, 9}});  // in the bucket of four
  EXPECT_NO_THROW(decoder.logits(2));
  EXPECT_THROW(decoder.logits(3), InternalError);
  EXPECT_EQ(decoder.choose([](std::int64_t i, std::span<const float>) { return static_cast<std::int32_t>(7 + i); }),
            (std::vector<std::int32_t>{7, 8, 9}));
}

// Replay and guard: every item of every bucket matches its plan, and bytes that are not live are NaN.
TEST(Decoder, PassesMatchTheirPlans) {
  const auto device = make_cpu_device({.threads = 2});
  engine::OpenModel model = open("everything");
  Decoder watched(model, {}, {.sequences = 3, .positions = 300}, 2, *device, {.replay = true, .guard = true});
  Decoder plain(model, {}, {.sequences = 3, .positions = 300}, 2, *device);
  const std::vector<std::int32_t> ids = some_ids(300, model.model->vocabulary(), 3);
  const auto same = [](std::span<const float> a, std::span<const float> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  for (const std::int64_t length : {1, 5, 20, 270}) {
    const auto prompt = std::span(ids).first(static_cast<std::size_t>(length));
    EXPECT_TRUE(same(watched.prefill(length % 3, 0, prompt), plain.prefill(length % 3, 0, prompt)));
  }
  const std::vector<Decoder::NewToken> tokens{{2, 20, 5}, {0, 270, 7}, {1, 1, 9}};
  for (const std::size_t count : {1, 2, 3}) {
    watched.decode(std::span(tokens).first(count));
    plain.decode(std::span(tokens).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(same(watched.logits(static_cast<std::int64_t>(i)), plain.logits(static_cast<std::int64_t>(i))));
    }
  }
}

TEST(Decoder, FormsHoldWhatTheyAreAskedFor) {
  for (const std::int64_t sequences : {1, 2, 3, 8, 13}) {
    for (const std::int64_t positions : {1, 8, 9, 100, 5000}) {
      const auto buckets = shape_buckets({sequences, positions});
      for (std::int64_t rows = 1; rows <= std::min(positions, kChunkRows); ++rows) {
        const ShapeBucket& bucket = buckets[bucket_for_rows(buckets, rows)];
        EXPECT_GE(bucket.rows, rows);
        EXPECT_LE(bucket.rows, std::max<std::int64_t>(8, 2 * rows));
        EXPECT_EQ(bucket.sequences, 1);
      }
      for (std::int64_t n = 1; n <= sequences; ++n) {
        const ShapeBucket& bucket = buckets[bucket_for_sequences(buckets, n)];
        EXPECT_GE(bucket.sequences, n);
        EXPECT_LT(bucket.sequences, 2 * n);
      }
      EXPECT_EQ(buckets.back().sequences, sequences);
    }
  }
}

// Memory: only the KV cache grows with the number of positions.
TEST(Decoder, OnlyTheCacheGrowsWithThePositions) {
  engine::OpenModel model = open("gqa");
  const nn::AttentionConfig& c = model.model->description().blocks[0].attention;
  const auto bytes = [&](std::int64_t sequences, std::int64_t positions) {
    return planned_memory(*model.model, pass_layouts({}, *model.model, {sequences, positions}, 1, DeviceKind::cpu))
        .device;
  };
  const std::int64_t row = 2 * 2 * c.kv_size() * 4;  // two layers, keys and values, float32
  EXPECT_EQ(bytes(4, 20000) - bytes(4, 10000), 4 * 10000 * row);
  EXPECT_EQ(bytes(1, 20000) - bytes(1, 10000), 10000 * row);
}

TEST(Decoder, NeedsThePlannedBytes) {
  const auto device = make_cpu_device();
  const CacheSize size{.sequences = 3, .positions = 100};
  engine::OpenModel model = open("gqa");
  Recipe recipe;
  const std::int64_t bytes =
      planned_memory(*model.model, pass_layouts(recipe, *model.model, size, 1, DeviceKind::cpu)).device;
  recipe.memory.capacity = Bytes(bytes - 1);
  EXPECT_THROW(Decoder(model, recipe, size, 1, *device), Error);
  recipe.memory.capacity = Bytes(bytes);
  EXPECT_NO_THROW(Decoder(model, recipe, size, 1, *device));
}

// KV caches limit the batch, and only what can help is suggested.
TEST(Open, TheBatchRespectsTheMemory) {
  const TemporaryFolder own;
  std::string lines;
  for (int i = 0; i < 7; ++i) lines += "{\"input_ids\": [5, 6]}\n";
  const std::string file = own.write("prompts.jsonl", lines);
  const engine::OpenModel model = open("gqa");
  const auto needed = [&](std::int64_t sequences, std::int64_t positions) {
    const CacheSize size{.sequences = sequences, .positions = positions};
    const std::vector<plan::Layout> layouts = pass_layouts({}, *model.model, size, 1, DeviceKind::cpu);
    return planned_memory(*model.model, layouts).device + plan::overhead_of(plan::load_target("cpu"), {}, 0);
  };
  const auto request_of = [&](std::int64_t memory, std::optional<std::int64_t> batch, std::int64_t max_tokens = 9) {
    Recipe recipe;
    recipe.memory.capacity = Bytes(memory);
    return GenerateRequest{
        .model = tiny("gqa"), .prompts = file, .max_tokens = max_tokens, .batch = batch, .recipe = recipe};
  };
  const auto sequences = [&](std::int64_t memory) {
    Problems problems;
    const auto input = open_generation(request_of(memory, std::nullopt), problems);
    HAWSER_CHECK(input.has_value(), problems.lines());
    return input->size.sequences;
  };
  EXPECT_EQ(sequences(needed(7, 10)), 7);
  EXPECT_EQ(sequences(needed(7, 10) - 1), 3);
  EXPECT_EQ(sequences(needed(3, 10) - 1), 1);

  const auto hint = [&](const GenerateRequest& request) -> std::string {
    Problems problems;
    try {
      open_generation(request, problems);
      return "fits";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::does_not_fit);
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with("does not fit (expected at most ")) << message;
      const auto at = message.find("; try ");
      return at == message.npos ? "" : message.substr(at + 6);
    }
  };
  EXPECT_EQ(hint(request_of(needed(1, 10) - 1, std::nullopt)), "fewer --max-tokens");
  GenerateRequest longer = request_of(needed(1, 100) - 1, std::nullopt, 1);
  longer.prompts.clear();
  longer.prompt_ids.assign(100, 5);
  EXPECT_EQ(hint(longer), "shorter prompts") << "one token is the fewest";
  EXPECT_EQ(hint(request_of(needed(1, 1) - 1, std::nullopt)), "");
  EXPECT_EQ(hint(request_of(std::max(needed(1, 10), needed(7, 2)), 7)), "a smaller --batch, or fewer --max-tokens");
  EXPECT_EQ(hint(request_of(needed(1, 10), 7, 9000)), "a smaller --batch with fewer --max-tokens");
  EXPECT_EQ(hint(request_of(needed(1, 2), 7, 1)), "a smaller --batch");
}

TEST(Open, ModelsOfOtherPredictionsAreRejected) {
  const GenerateRequest request{
      .model = tiny("gqa"), .prompt_ids = {5}, .changes = {.describe = [](models::ModelDescription& d, Problems&) {
                                                 d.head.kind = nn::HeadKind::masked_language_model;
                                               }}};
  Problems problems;
  EXPECT_FALSE(open_generation(request, problems).has_value());
  EXPECT_EQ(problems.lines(), cat(tiny("gqa"),
                                  ": only a model that predicts the next token generates text (got a head for masked "
                                  "language modeling)"));
  const engine::OpenModel model = engine::open_trained_model(request.model, problems, request.changes);
  try {
    planned_memory(*model.model, pass_layouts({}, *model.model, {.sequences = 1, .positions = 9}, 1, DeviceKind::cpu));
    ADD_FAILURE() << "accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("whose head is for masked language modeling"), std::string::npos);
  }
}

}  // namespace decoder_test
}  // namespace hawser::generate
