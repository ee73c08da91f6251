// KV caches in host memory, over tensor ranks, stages and shards: the logits of KV caches on the device.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing/temporary_folder.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "generate/decoder.h"
#include "generate_case.h"

namespace hawser {
namespace generate_cache_test {

using namespace testing::generation;

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
  if (the_world->size() > 4) GTEST_SKIP() << "mesh_1, mesh_2 and mesh_4 run it";
  const auto device = rank_device({.random_delay_s = 1e-4, .delay_seed = 9});
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
                                {.replay = true, .guard = kRankDevice == DeviceKind::cpu}, ranks_of(held, 2));
      logits.push_back(logits_of(decoder));
      EXPECT_EQ(logits.back().empty(), !decoder.has_logits());
    }
    EXPECT_TRUE(std::ranges::equal(logits[0], logits[1])) << held.text();
  }
}

}  // namespace generate_cache_test
}  // namespace hawser
