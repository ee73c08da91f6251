// Plans: safe on every small mesh with every policy, equal on all ranks, made within a time limit.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <sstream>

#include "base/testing/test_paths.h"
#include "config/config.h"
#include "models/families.h"
#include "plan/report.h"
#include "program/testing/reachability.h"
#include "support.h"
#include "support/pieces_exchange.h"

namespace hawser {
namespace plan_test {

using testing::all_meshes;
using testing::all_policies;
using testing::LayoutOptions;
using testing::make_test_layout;

TEST(Plan, EveryRankOfEveryMeshIsCheckedWithEveryPolicy) {
  const models::Model model(testing::toy_description());
  int proved = 0;
  for (const int world : {1, 2, 4, 8}) {
    for (const comm::MeshSizes& mesh : all_meshes(world)) {
      for (LayoutOptions options : all_policies()) {
        options.mesh = mesh;
        const plan::LayoutChoices layout = make_test_layout(options, model);
        for (const step::Purpose purpose : {step::Purpose::train, step::Purpose::gradient_norms, step::Purpose::loss}) {
          // Forward-only programs depend on few policies; the first represents the others.
          if (purpose == step::Purpose::loss && options.micro_batches > 1) continue;
          std::vector<plan::RankPlan> plans;
          std::vector<const plan::RankPlan*> views;
          std::vector<int> ranks;
          for (int rank = 0; rank < world; ++rank) {
            plans.push_back(plan::plan_rank(model, plan::derive(layout, model), purpose, rank));
            ranks.push_back(rank);
          }
          for (const plan::RankPlan& plan : plans) {
            views.push_back(&plan);
            // rank_classes() relies on this: it plans one rank for all.
            EXPECT_EQ(plan.bytes(), plans[0].bytes()) << testing::text_of(options);
            // A session's ranks take the plan of one of them (plan/shared_plan.h).
            EXPECT_EQ(plan.buffers.placement.offsets, plans[0].buffers.placement.offsets) << testing::text_of(options);
            EXPECT_EQ(plan.offset_hashes, plans[0].offset_hashes) << testing::text_of(options);
          }
          EXPECT_NO_THROW(plan::check_plans(views, ranks)) << testing::text_of(options);
          ++proved;
        }
      }
    }
  }
  std::printf("%d programs proved\n", proved);
}

// Each rank has experts of its own. The rows that it exchanges differ, the calls and the plans do not.
TEST(Plan, RanksWithDifferentExpertsAreCheckedTogether) {
  const auto plan_all = [](const comm::MeshSizes& mesh, LayoutOptions options, step::Purpose purpose) {
    options.mesh = mesh;
    std::vector<std::unique_ptr<models::Model>> models;
    std::vector<plan::RankPlan> plans;
    std::vector<const plan::RankPlan*> views;
    std::vector<int> ranks;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      models::ModelDescription description = testing::toy_with_experts(8);
      for (models::BlockDescription& block : description.blocks) {
        block.moe->experts_shard = {.index = comm::expert_part(comm::coordinate_of(rank, mesh), mesh),
                                    .count = mesh.expert};
      }
      models.push_back(std::make_unique<models::Model>(
          std::move(description), nn::FlatSpecOf([](const nn::Param& param) { return param.flat; })));
      plan::LayoutChoices layout = make_test_layout(options, *models.back());
      layout.token_exchange = testing::exchange_in_pieces(2);
      plans.push_back(plan::plan_rank(*models.back(), plan::derive(layout, *models.back()), purpose, rank));
      ranks.push_back(rank);
    }
    for (const plan::RankPlan& plan : plans) {
      views.push_back(&plan);
      EXPECT_EQ(plan.bytes(), plans[0].bytes()) << testing::text_of(options);
      if (mesh.context == 1) {
        EXPECT_EQ(plan.buffers.placement.offsets, plans[0].buffers.placement.offsets);
      }
    }
    EXPECT_NO_THROW(plan::check_plans(views, ranks)) << testing::text_of(options);
  };
  for (const LayoutOptions& options : all_policies()) {
    plan_all({.shard = 2, .expert = 2}, options, step::Purpose::train);
    plan_all({.context = 2, .shard = 2, .expert = 2}, options, step::Purpose::gradient_norms);
    plan_all({.shard = 4, .expert = 4}, options, step::Purpose::train);
  }
  plan_all({.context = 2, .shard = 2, .replicate = 2, .expert = 4}, {}, step::Purpose::train);
  plan_all({.shard = 8, .expert = 8}, {}, step::Purpose::loss);
}

// On a GPU attention segments differ between the ranks of a context group; op records and plans must not.
TEST(Plan, RanksOfAContextGroupHaveOnePlanOnAGpu) {
  const models::Model model(testing::llama_description({}));
  for (const std::int64_t documents : {1, 8}) {
    for (const int context : {2, 4}) {
      LayoutOptions options;
      options.mesh = {.context = context};
      plan::LayoutChoices layout = make_test_layout(options, model);
      layout.device = DeviceKind::cuda;
      layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::bf16;
      layout.head_groups = plan::kCudaHeadGroups;
      layout.batch_sizes = {.sequences = 3, .sequence_length = 1000, .max_documents = documents, .context = context};
      layout.batch_sizes.chunks_per_rank = documents == 1 ? 2 : 4;
      layout.batch_sizes.split = documents == 1 ? batches::SequenceSplit::zigzag : batches::SequenceSplit::by_work;
      std::vector<plan::RankPlan> plans;
      std::vector<const plan::RankPlan*> views;
      std::vector<int> ranks;
      for (int rank = 0; rank < context; ++rank) {
        plans.push_back(plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, rank));
        ranks.push_back(rank);
      }
      for (const plan::RankPlan& plan : plans) {
        views.push_back(&plan);
        EXPECT_EQ(plan.bytes(), plans[0].bytes());
        EXPECT_EQ(plan.buffers.index, plans[0].buffers.index);
        EXPECT_EQ(plan.buffers.placement.offsets, plans[0].buffers.placement.offsets);
      }
      EXPECT_NO_THROW(plan::check_plans(views, ranks));
    }
  }
}

// A KV cache has no later keys.
TEST(Plan, AttentionThatIsNotCausalHasNoKvCache) {
  models::ModelDescription description = testing::llama_description({});
  description.blocks.at(1).attention.causal = false;
  const models::Model model(description), causal(testing::llama_description({}));
  const auto rejection = [&](const models::Model& planned, int context, std::int64_t kv_cache_rows) -> std::string {
    plan::LayoutChoices layout = make_test_layout({.mesh = {.context = context}}, planned);
    if (kv_cache_rows > 0) layout.cached = plan::CachedPass{.cache_rows = kv_cache_rows, .positions = kv_cache_rows};
    try {
      plan::plan_rank(planned, plan::derive(layout, planned),
                      kv_cache_rows > 0 ? step::Purpose::logits : step::Purpose::train, 0);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(rejection(model, 1, 0), "");
  EXPECT_EQ(rejection(causal, 2, 0), "");
  EXPECT_EQ(rejection(causal, 1, 96), "");
  EXPECT_EQ(rejection(model, 2, 0), "");
  EXPECT_NE(rejection(model, 1, 96)
                .find("block 1: attention that is not causal is not supported with a KV cache: queries would not see "
                      "later keys"),
            std::string::npos);
}

// Reference check whether the plan of one rank is safe: reachability between every two accesses.
bool safe(const plan::RankPlan& plan) {
  const program::testing::Reachability truth(plan.trace);
  const std::vector<program::Buffer>& buffers = plan.buffers.buffers;
  const auto accesses = program::testing::accesses_of(plan.trace, buffers);
  const auto begin = [&](int b) { return plan.buffers.placement.offsets[static_cast<std::size_t>(b)]; };
  const auto end = [&](int b) { return begin(b) + buffers[static_cast<std::size_t>(b)].bytes; };
  // For each pair of buffers that share bytes: which of the two orders is not guaranteed for some pair of their
  // accesses?
  std::map<std::pair<int, int>, std::array<bool, 2>> broken;
  for (std::size_t j = 0; j < accesses.size(); ++j) {
    for (std::size_t i = 0; i < j; ++i) {
      const auto &a = accesses[i], &b = accesses[j];
      const bool forward = truth.before(a.item, b.item), backward = truth.before(b.item, a.item);
      if (a.buffer == b.buffer) {
        if (a.item != b.item && !forward && !backward && (a.access.write || b.access.write) &&
            overlap(a.access, b.access)) {
          return false;
        }
      } else if (begin(a.buffer) >= 0 && begin(b.buffer) >= 0 && begin(a.buffer) < end(b.buffer) &&
                 begin(b.buffer) < end(a.buffer)) {
        const bool swap = a.buffer > b.buffer;
        auto& orders = broken[swap ? std::pair(b.buffer, a.buffer) : std::pair(a.buffer, b.buffer)];
        if (!(swap ? backward : forward)) orders[0] = true;
        if (!(swap ? forward : backward)) orders[1] = true;
      }
    }
  }
  for (const auto& [pair, orders] : broken) {
    if (orders[0] && orders[1]) return false;
  }
  const int last = static_cast<int>(plan.trace.items.size()) - 1;
  for (int i = 0; i < last; ++i) {
    if (plan.trace.items[static_cast<std::size_t>(i)].kind == TraceItem::Kind::work && !truth.before(i, last)) {
      return false;
    }
  }
  return true;
}

// Removes each wait of a program in turn. The plan must then be rejected, unless it is still safe: another wait implies
// the removed one, or it delays a gather whose memory this placement does not need at once.
TEST(Plan, AProgramWithOneEventRemovedIsRejected) {
  const models::Model model(testing::toy_description());
  for (const comm::MeshSizes& mesh :
       {comm::MeshSizes{.context = 2, .shard = 2}, comm::MeshSizes{.shard = 2, .replicate = 2},
        comm::MeshSizes{.context = 4, .shard_context = false}}) {
    const plan::LayoutChoices layout =
        make_test_layout({.mesh = mesh, .checkpointing = Checkpointing::full, .micro_batches = 2}, model);
    const plan::RankPlan good = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    EXPECT_TRUE(safe(good));
    int waits = 0, rejected = 0;
    for (std::size_t i = 0; i < good.trace.items.size(); ++i) {
      if (good.trace.items[i].kind != TraceItem::Kind::wait) continue;
      ++waits;
      plan::RankPlan broken = good;
      TraceItem& item = broken.trace.items[i];
      item.kind = TraceItem::Kind::record_event;  // an unused event: keeps the indices
      item.target = -1;
      bool rejects = false;
      try {
        plan::check_plans({&broken}, {0});
      } catch (const InternalError&) {
        rejects = true;
      }
      rejected += rejects ? 1 : 0;
      EXPECT_EQ(rejects, !safe(broken)) << "wait " << i << " of instruction " << item.instruction;
    }
    std::printf("%d waits: %d rejected without them\n", waits, rejected);
    EXPECT_GT(rejected, waits / 3);
  }
}

struct Speed {
  const char* recipe;
  int ranks;
};

class PlanSpeed : public ::testing::TestWithParam<Speed> {};

TEST_P(PlanSpeed, IsUnderTwoSeconds) {
  const std::string file = cat(testing::kSourceFolder, "/recipes/", GetParam().recipe);
  const std::clock_t start = std::clock();  // CPU time of this process, since the machine may run other work
  const Recipe recipe = read_recipe(file, {}, Purpose::plan);
  // `hawser plan FILE` needs no options.
  EXPECT_EQ(recipe.run.device, DeviceChoice::cuda);
  EXPECT_EQ(default_ranks(recipe, recipe.run.device), GetParam().ranks);
  Problems problems;
  const models::Model model(models::read_description(resolve_path(recipe, recipe.model.config), problems));
  problems.throw_if_any();
  const plan::Forecaster forecaster(recipe, model, GetParam().ranks, plan::load_target("h200"), plan::this_machine(),
                                    1);
  const plan::Forecast forecast = forecaster.forecast();
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::printf("%s on %d ranks: planned in %.3f s, %.4f of what is live\n", GetParam().recipe, GetParam().ranks, seconds,
              double(forecast.largest().costs.total_bytes) / double(forecast.largest().costs.peak_bytes));
  EXPECT_LT(seconds, step::kAddressSanitizer ? 20.0 : 2.0);
  EXPECT_TRUE(forecast.fits());
  EXPECT_EQ(forecast.layout.compute, DType::bf16);
  EXPECT_LE(static_cast<double>(forecast.largest().costs.total_bytes),
            1.03 * static_cast<double>(forecast.largest().costs.peak_bytes));
  // The text stays within 100 columns.
  std::istringstream lines(
      plan::plan_text(recipe, model, forecaster.target(), forecast,
                      {.steps = {.count = 1000},
                       .disk = plan::disk_use(recipe, model, forecast.layout, 1000, forecast.seconds),
                       .free_disk = 1,
                       .alternatives = {}}));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

INSTANTIATE_TEST_SUITE_P(Llama, PlanSpeed,
                         ::testing::Values(Speed{"llama-3.1-8b-16k.yaml", 8}, Speed{"llama-3.1-70b-16k.yaml", 1024}));

// Model FLOPs and predicted speed of Llama-3.1-8B against known limits: 45.03e9 FLOPs per token plus 786,432 x length;
// at most 10,900 tokens/s per device at 16K, as measured.
TEST(Plan, LlamaAgreesWithMeasurements) {
  const Recipe recipe = read_recipe(cat(testing::kSourceFolder, "/recipes/llama-3.1-8b-16k.yaml"), {}, Purpose::plan);
  Problems problems;
  const models::Model model(models::read_description(resolve_path(recipe, recipe.model.config), problems));
  const plan::Forecast f =
      plan::Forecaster(recipe, model, 8, plan::load_target("h200"), plan::this_machine(), 1).forecast();
  EXPECT_NEAR(f.largest().costs.model_flops / 16384, 45.03e9 + 786432.0 * 16384, 0.01 * 57.9e9);
  EXPECT_GT(f.tokens_per_second / 8, 9000);
  EXPECT_LT(f.tokens_per_second / 8, 10900);
}

// run.deterministic in attention: no effect on the CPU; on CUDA it adds workspace to the plan, up to the length from which
// on the tiled kernel replaces cuDNN, which needs none.
TEST(Plan, DeterminismAddsWorkspaceWithCudnn) {
  Recipe recipe = read_recipe(cat(testing::kSourceFolder, "/recipes/llama-3.1-8b-16k.yaml"), {}, Purpose::plan);
  Problems problems;
  const models::Model model(models::read_description(resolve_path(recipe, recipe.model.config), problems));
  const auto layout = [&](std::int64_t length, std::optional<bool> deterministic, DeviceKind device) {
    recipe.data.sequence_length = length;
    recipe.run.deterministic = deterministic;
    return plan::make_layout(recipe, model, 8, DType::bf16, 1, device);
  };
  // A 16K x 16K bf16 matrix for each of the four query heads of a KV head, one KV head at a time.
  constexpr std::int64_t kMatrices = std::int64_t{4} * 16384 * 16384 * 2;
  // Counts buffers that hold these matrices and at most 64 MiB more.
  const auto matrices = [&](std::int64_t length, std::optional<bool> deterministic) {
    const plan::RankPlan plan = plan::plan_rank(
        model, plan::derive(layout(length, deterministic, DeviceKind::cuda), model), step::Purpose::train, 0);
    return std::count_if(plan.buffers.buffers.begin(), plan.buffers.buffers.end(), [](const program::Buffer& b) {
      return b.bytes >= kMatrices && b.bytes <= ops::kDeterministicBytes + (64 << 20);
    });
  };
  EXPECT_TRUE(layout(2048, std::nullopt, DeviceKind::cpu).deterministic);
  EXPECT_FALSE(layout(2048, std::nullopt, DeviceKind::cuda).deterministic);
  EXPECT_EQ(matrices(16384, false), 0);
  EXPECT_EQ(matrices(16384, std::nullopt), 0);
  EXPECT_EQ(matrices(16384, true), 32);  // one per block
  EXPECT_NO_THROW(matrices(32768, std::nullopt));
  EXPECT_EQ(matrices(32768, true), 0);
}

// The plan names the attention kernels of a step on a GPU, with the reason for a slow one.
TEST(Plan, ReportsItsAttentionKernels) {
  const models::Model model(testing::llama_description({}));
  const auto lines = [&](DType compute, std::int64_t documents, DeviceKind device, bool deterministic = false) {
    plan::LayoutChoices layout = make_test_layout({.documents = documents, .compute = compute}, model);
    layout.device = device;
    layout.deterministic = deterministic;
    std::string out;
    for (const std::string& line :
         plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0).implementations) {
      out += line + "; ";
    }
    return out;
  };
  EXPECT_EQ(lines(DType::f32, 4, DeviceKind::cpu), "");
  EXPECT_EQ(lines(DType::bf16, 1, DeviceKind::cuda),
            "attention_forward: cudnn dense; attention_backward: cudnn dense; ");
  EXPECT_EQ(lines(DType::f32, 1, DeviceKind::cuda),
            "attention_forward: plain (float32 operands; precision.compute: bf16 avoids it); "
            "attention_backward: plain (float32 operands; precision.compute: bf16 avoids it); ");
  EXPECT_EQ(lines(DType::bf16, 4, DeviceKind::cuda, true),
            "attention_forward: cudnn ragged (segments may differ in length); "
            "attention_backward: tiled (deterministic, and segments may differ in length; run.deterministic: "
            "false or data.pack: chunks avoids it); ");
}

// Kernels of our own have rates of their own: the plain one computes float32, the tiled one, for instance, a
// deterministic backward pass over packed documents.
TEST(Plan, CountsTheTimeOfOwnKernels) {
  const models::Model model(testing::llama_description({}));
  plan::Target target = plan::load_target("h200");
  target.bf16.attention.backward /= 1e6;  // a small model's calls take longer than their launches
  const auto busy = [&](DType compute, bool deterministic, OpKind kind) {
    plan::LayoutChoices layout = make_test_layout({.documents = 4, .compute = compute}, model);
    layout.device = DeviceKind::cuda;
    layout.deterministic = deterministic;
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    double flops = 0;
    for (const TraceItem& item : plan.trace.items) {
      if (item.record.kind == kind) flops += item.record.flops;
    }
    return std::pair(plan::step_time(plan.trace, target, compute, 1).busy, flops);
  };
  const auto [plain, plain_flops] = busy(DType::f32, false, OpKind::attention_plain_backward);
  EXPECT_GT(plain_flops, 0);
  EXPECT_GE(plain.at(plan::kSlowAttention), plain_flops / target.float32.attention.backward);
  const auto [tiled, tiled_flops] = busy(DType::bf16, true, OpKind::attention_tiled_backward);
  EXPECT_GT(tiled_flops, 0);
  const auto [cudnn, none] = busy(DType::bf16, false, OpKind::attention_tiled_backward);
  EXPECT_EQ(none, 0);
  EXPECT_GT(tiled.at("attention"), cudnn.at("attention"));
  EXPECT_FALSE(tiled.contains(plan::kSlowAttention));
}

TEST(CostModel, ReadsGroupsFromTheirNames) {
  const plan::Members shard = plan::members_of("shard:0-15/gather", 8);
  EXPECT_EQ(shard.count, 16);
  EXPECT_EQ(shard.on_first_node, 8);
  EXPECT_EQ(shard.last, 15);
  const plan::Members replicate = plan::members_of("replicate:5-61:8", 8);
  EXPECT_EQ(replicate.count, 8);
  EXPECT_EQ(replicate.first, 5);
  EXPECT_EQ(replicate.on_first_node, 1);
  EXPECT_EQ(plan::members_of("x:0-1,4-5", 4).count, 4);
  EXPECT_EQ(plan::members_of("x:0-1,4-5", 4).on_first_node, 2);
  EXPECT_EQ(plan::members_of("world:3", 8).count, 1);
}

// A member keeps its own part.
TEST(CostModel, AllToAllSendsThePartsOfOthers) {
  EXPECT_EQ(plan::bytes_sent({.kind = CollectiveKind::all_to_all, .bytes = 800}, 4, true), 600);
  const CollectiveNote rows{.kind = CollectiveKind::all_to_all_v, .bytes = 800, .expected_bytes = 80};
  EXPECT_EQ(plan::bytes_sent(rows, 4, true), 60);
  EXPECT_EQ(plan::bytes_sent(rows, 4, false), 600);
}

// GPUs of a node load counted rows from one another, and CPUs send only these. Between nodes NCCL sends their bound.
TEST(CostModel, CountedRowsHaveTheTimeOfTheirBoundBetweenNodes) {
  plan::Target target;
  target.links = {{.ranks = 4, .rate = 4e6, .latency = 0}, {.ranks = 0, .rate = 1e6, .latency = 0}};
  const auto seconds = [&](bool cuda, const char* communicator) {
    target.cuda = cuda;
    MetaDevice device;
    device.make_stream("a")->launch({.name = "all_to_all_v",
                                     .kind = OpKind::communication,
                                     .collective = {.kind = CollectiveKind::all_to_all_v,
                                                    .communicator = communicator,
                                                    .bytes = 8'000'000,
                                                    .expected_bytes = 1e6}},
                                    {});
    return plan::step_time(device.trace(), target, DType::f32, 1.0).seconds;
  };
  EXPECT_NEAR(seconds(true, "expert:0-3"), 0.75 * 1e6 / 4e6, 1e-12);
  EXPECT_NEAR(seconds(true, "expert:4-5"), 0.5 * 1e6 / 4e6, 1e-12);
  EXPECT_NEAR(seconds(true, "expert:2-5"), 0.75 * 8e6 / 2e6, 1e-12);  // the links of two ranks on each node
  EXPECT_NEAR(seconds(true, "expert:0-12:4"), 0.75 * 8e6 / 1e6, 1e-12);
  EXPECT_NEAR(seconds(false, "expert:2-5"), 0.75 * 1e6 / 2e6, 1e-12);
  target.links.front().peer_access = false;  // nothing to load from
  EXPECT_NEAR(seconds(true, "expert:0-3"), 0.75 * 8e6 / 4e6, 1e-12);
  EXPECT_NEAR(seconds(false, "expert:0-3"), 0.75 * 1e6 / 4e6, 1e-12);
  target.links.front().peer_access = true;
  target.links.erase(target.links.begin());  // one machine of any number of ranks
  EXPECT_NEAR(seconds(true, "expert:2-5"), 0.75 * 1e6 / 1e6, 1e-12);
}

TEST(CostModel, CountedRowsAreTrafficAsTheyAreSent) {
  const models::Model model(testing::llama_description({.blocks = 1}));
  const plan::LayoutChoices layout = testing::make_test_layout({}, model);
  plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
  const CollectiveNote rows{
      .kind = CollectiveKind::all_to_all_v, .communicator = "expert:0-3", .bytes = 800, .expected_bytes = 80};
  plan.trace.items.push_back({.record = {.name = "rows", .kind = OpKind::communication, .collective = rows}});
  plan::Target target;
  target.cuda = true;
  const auto sent = [&](int ranks_of_a_node) {
    target.links = {{.ranks = ranks_of_a_node}, {.ranks = 0}};
    return plan::costs_of(plan, model, plan::derive(layout, model), &target).traffic.at("expert");
  };
  EXPECT_EQ(sent(4), 60);
  EXPECT_EQ(sent(2), 600);
}

TEST(CostModel, StreamsOverlapAndEventsOrder) {
  plan::Target target;
  target.copy = 1e9, target.launch = 0;
  target.float32.gemm = 1e9;
  target.links = {{.ranks = 0, .rate = 1e6, .latency = 0}};
  MetaDevice device;
  const auto a = device.make_stream("a"), b = device.make_stream("b");
  a->launch({.name = "gemm", .kind = OpKind::gemm, .flops = 1e9}, {});  // 1 s
  b->launch({.name = "all_gather",
             .kind = OpKind::communication,
             .collective = {.kind = CollectiveKind::all_gather, .communicator = "shard:0-1", .bytes = 2'000'000}},
            {});  // 2 s
  a->wait(b->record_event());
  a->launch({.name = "copy", .kind = OpKind::copy, .bytes = 5e8}, {});  // half a second
  const plan::StepTime side_by_side = plan::step_time(device.trace(), target, DType::f32, 1.0);
  EXPECT_NEAR(side_by_side.seconds, 2.5, 1e-9);
  EXPECT_NEAR(side_by_side.busy.at("GEMM"), 1.0, 1e-9);
  target.overlap = false;
  EXPECT_NEAR(plan::step_time(device.trace(), target, DType::f32, 0.5).seconds, 2.0 + 2.0 + 1.0, 1e-9);
}

// Of two ranks of a node, both send over the network at once; a message is carried by one.
TEST(CostModel, AMessageIsCarriedByOneLink) {
  plan::Target target;
  target.copy = 1e9;
  target.links = {{.ranks = 2, .rate = 4e6, .latency = 0}, {.ranks = 0, .rate = 1e6, .latency = 0}};
  const auto seconds = [&](CollectiveKind kind, const char* communicator) {
    MetaDevice device;
    device.make_stream("a")->launch(
        {.name = "message",
         .kind = OpKind::communication,
         .collective = {.kind = kind, .communicator = communicator, .bytes = 2'000'000, .peer = 1, .source = 1}},
        {});
    return plan::step_time(device.trace(), target, DType::f32, 1.0).seconds;
  };
  EXPECT_NEAR(seconds(CollectiveKind::all_gather, "context:0-3"), 3 * 2e6 / 2e6, 1e-9);
  for (const CollectiveKind kind : {CollectiveKind::send, CollectiveKind::receive, CollectiveKind::exchange}) {
    EXPECT_NEAR(seconds(kind, "context:0-3"), 2.0, 1e-9);
    EXPECT_NEAR(seconds(kind, "context:0-1"), 0.5, 1e-9);
  }
}

TEST(CostModel, TransfersHaveTheRateOfTheHostLink) {
  const std::string text =
      "name: x\nabout: y\ncapacity: 1 GiB\ncontext: 0\ncommunicator: 0\nlaunch: 0\ncopy: 1e12\n"
      "gemm: {bf16: 1, float32: 1}\n"
      "attention: {bf16: {forward: 1, backward: 1}, float32: {forward: 1, backward: 1}}\n"
      "links: [{ranks: 0, rate: 1, latency: 0}]\n";
  const auto target = [&](const std::string& more) { return plan::parse_target(text + more, "x.yaml"); };
  const auto seconds = [](const plan::Target& target, std::int64_t bytes) {
    MetaDevice device;
    const Access from{.address = 1 << 20, .row_bytes = bytes},
        to{.address = 1 << 21, .row_bytes = bytes, .write = true};
    const auto in = device.make_stream("in"), out = device.make_stream("out");
    in->launch({.name = "load", .kind = OpKind::transfer, .accesses = {from, to}}, {});
    out->launch({.name = "offload", .kind = OpKind::transfer, .accesses = {from}}, {});  // both directions at once
    return plan::step_time(device.trace(), target, DType::bf16, 1.0).seconds;
  };
  const plan::Target given = target("device: cuda\nhost: {rate: 1e6, latency: 0.25}\n");
  EXPECT_NEAR(seconds(given, 1'000'000), 1.0, 1e-9);
  EXPECT_NEAR(seconds(given, 1'000), 0.25, 1e-9);
  EXPECT_NEAR(seconds(target("device: cuda\n"), 1'000'000), 1e6 / 2.5e10, 1e-9);
  const plan::Target cpu = target("device: cpu\n");  // one memory: bytes read plus bytes written
  EXPECT_NEAR(seconds(cpu, 1'000'000), 2e6 / 1e12, 1e-12);
  EXPECT_THROW(target("device: cuda\nhost: {rate: 0, latency: 0}\n"), UserError);
  EXPECT_THROW(target("device: cuda\nhost: {rate: 1}\n"), UserError);
  EXPECT_THROW(target("device: cuda\nhost: {speed: 1, rate: 1, latency: 0}\n"), UserError);
}

TEST(CostModel, GemmsWithFp8OperandsHaveTheirRate) {
  const std::string text =
      "name: x\nabout: y\ndevice: cuda\ncapacity: 1 GiB\ncontext: 0\ncommunicator: 0\nlaunch: 0\ncopy: 1e9\n"
      "attention: {bf16: {forward: 1, backward: 1}, float32: {forward: 1, backward: 1}}\n"
      "links: [{ranks: 0, rate: 1, latency: 0}]\n";
  const plan::Target plain = plan::parse_target(text + "gemm: {bf16: 1e9, float32: 1e9}\n", "x.yaml");
  const plan::Target faster = plan::parse_target(text + "gemm: {bf16: 1e9, float32: 1e9, fp8: 2e9}\n", "x.yaml");
  const plan::Target blocks =
      plan::parse_target(text + "gemm: {bf16: 1e9, float32: 1e9, fp8: 2e9, fp8_block: 1.6e9}\n", "x.yaml");
  const auto busy = [](OpKind kind, const plan::Target& target) {
    MetaDevice device;
    device.make_stream("a")->launch({.name = "gemm", .kind = kind, .flops = 1e9}, {});
    return plan::step_time(device.trace(), target, DType::bf16, 1.0).busy.at("GEMM");
  };
  EXPECT_NEAR(busy(OpKind::gemm_fp8, plain), 1.0, 1e-9);
  EXPECT_NEAR(busy(OpKind::gemm_fp8, faster), 0.5, 1e-9);
  EXPECT_NEAR(busy(OpKind::gemm_fp8_block, plain), 1.0, 1e-9);
  EXPECT_NEAR(busy(OpKind::gemm_fp8_block, faster), 0.5, 1e-9);
  EXPECT_NEAR(busy(OpKind::gemm_fp8, blocks), 0.5, 1e-9);
  EXPECT_NEAR(busy(OpKind::gemm_fp8_block, blocks), 1 / 1.6, 1e-9);
}

}  // namespace plan_test
}  // namespace hawser
