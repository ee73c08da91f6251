// The program of a step as text: which instructions a step has, on which streams, and what each waits for. A model of
// one block, whose layers are 0, attention, and 1, the MLP, and whose flats are 0, the embedding, 1, the block, and 2,
// the head.
#include "step/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "models/families.h"
#include "step/pass.h"

namespace hawser::step {
namespace schedule_test {

models::Model tiny_llama() {
  Problems problems;
  models::ModelDescription description = models::describe_config(
      R"({"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32, "max_position_embeddings": 16,
          "rms_norm_eps": 1e-5})",
      "config.json", problems);
  problems.throw_if_any();
  return models::Model(std::move(description));
}

// A step of one rank, but for `shard`.
std::string text_of(Purpose purpose, int micro_batches, const nn::SavePolicy& policy = {},
                    const parallel::ShardOptions& shard = {}) {
  const models::Model model = tiny_llama();
  const models::PipelinePartition partition;
  const bool backward = !forward_only(purpose);
  return make_program(model, {.purpose = purpose,
                              .micro_batches = micro_batches,
                              .partition = partition,
                              .passes = backward ? grouped_passes(micro_batches, 1, partition, 0)
                                                 : forward_passes(micro_batches, partition, 0),
                              .policies = std::vector<nn::SavePolicy>(static_cast<std::size_t>(model.layers()), policy),
                              .shard = shard})
      .text();
}

// Of two tensor ranks that both have all key-value heads, sharded with the copies.
std::string text_of_tensor_ranks(Purpose purpose) {
  const models::Model whole = tiny_llama();
  const models::Model model(whole.whole(), nn::common_domain, {.tensor = {.index = 0, .count = 2}});
  const models::PipelinePartition partition;
  return make_program(model, {.purpose = purpose,
                              .micro_batches = 1,
                              .partition = partition,
                              .passes = grouped_passes(1, 1, partition, 0),
                              .policies = std::vector<nn::SavePolicy>(static_cast<std::size_t>(model.layers())),
                              .shard = {.gather = true, .reduce = true},
                              .unsharded = {true, false, false, false},
                              .copies = 2})
      .text();
}

// The lines of an op.
std::string of_op(const std::string& text, const std::string& op) {
  std::string out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find("\t" + op + " ") != std::string::npos) out += line + "\n";
  }
  return out;
}

// Norms of tensors wait for the last of the instructions that complete gradients, whichever flat it is of.
TEST(ScheduleText, NormsOfTensorsFollowTheDivisionOfCopies) {
  const std::string text = text_of_tensor_ranks(Purpose::gradient_norms),
                    norms = text.substr(text.find("parameter_norms"));
  int last = -1;
  std::istringstream divisions(of_op(text, "divide_copies"));
  for (std::string line; std::getline(divisions, line);) last = std::max(last, std::stoi(line));
  ASSERT_GT(last, 0) << text;
  EXPECT_NE(norms.substr(0, norms.find('\n')).find(' ' + std::to_string(last)), std::string::npos) << text;
}

// Norms follow the backward that has completed a flat's gradient, and updates the norm of all.
TEST(ScheduleText, OneRankTrains) {
  EXPECT_EQ(text_of(Purpose::train, 1), R"(0	compute	begin_step
1	compute	load_batch mb0
2	compute	embed mb0
3	compute	forward mb0 layer 0
4	compute	forward mb0 layer 1
5	compute	loss_gradient mb0
6	compute	backward mb0 layer 1
7	compute	backward mb0 layer 0
8	compute	embed_backward mb0
9	compute	grad_norm_partial flat 2	after 5
10	compute	grad_norm_partial flat 1	after 7
11	compute	grad_norm_partial flat 0	after 8
12	compute	gradient_norm
13	compute	update flat 0
14	compute	update flat 1
15	compute	update flat 2
16	compute	end_step
)");
}

TEST(ScheduleText, AnEvaluationEndsWithTheLoss) {
  EXPECT_EQ(text_of(Purpose::loss, 1), R"(0	compute	begin_step
1	compute	load_batch mb0
2	compute	embed mb0
3	compute	forward mb0 layer 0
4	compute	forward mb0 layer 1
5	compute	loss mb0
6	compute	end_step
)");
}

TEST(ScheduleText, FullCheckpointingRunsEachLayerAgainBeforeItsBackward) {
  EXPECT_EQ(text_of(Purpose::train, 1, {.checkpointing = Checkpointing::full}), R"(0	compute	begin_step
1	compute	load_batch mb0
2	compute	embed mb0
3	compute	forward mb0 layer 0
4	compute	forward mb0 layer 1
5	compute	loss_gradient mb0
6	compute	recompute mb0 layer 1
7	compute	backward mb0 layer 1
8	compute	recompute mb0 layer 0
9	compute	backward mb0 layer 0
10	compute	embed_backward mb0
11	compute	grad_norm_partial flat 2	after 5
12	compute	grad_norm_partial flat 1	after 9
13	compute	grad_norm_partial flat 0	after 10
14	compute	gradient_norm
15	compute	update flat 0
16	compute	update flat 1
17	compute	update flat 2
18	compute	end_step
)");
}

// FSDP: two buffers of gathered weights, so that the gather of the head waits for the embedding's use, and the second
// one of the block for its forward. Each flat is reduced as soon as its gradient is complete.
TEST(ScheduleText, ShardsAreGatheredOneUseAheadAndReduced) {
  EXPECT_EQ(text_of(Purpose::train, 1, {}, {.gather = true, .reduce = true, .prefetch = 1}),
            R"(0	compute	begin_step
1	compute	load_batch mb0
2	gather	gather flat 0
3	gather	gather flat 1
4	compute	embed mb0	after 2
5	gather	gather flat 2	after 4
6	compute	forward mb0 layer 0	after 3
7	compute	forward mb0 layer 1	after 3
8	gather	gather flat 1	after 7
9	compute	loss_gradient mb0	after 5
10	reduce	reduce mb0 flat 2	after 9
11	compute	backward mb0 layer 1	after 8
12	compute	backward mb0 layer 0	after 8
13	reduce	reduce mb0 flat 1	after 12
14	compute	embed_backward mb0	after 10
15	reduce	reduce mb0 flat 0	after 14
16	compute	grad_norm_partial flat 2	after 10
17	compute	grad_norm_partial flat 1	after 13
18	compute	grad_norm_partial flat 0	after 15
19	compute	gradient_norm
20	compute	update flat 0
21	compute	update flat 1
22	compute	update flat 2
23	compute	end_step
)");
}

// Delayed, as zero-bubble schedules need them: the head's and the embedding's are not apart. The block's norm waits for
// the last of them.
TEST(ScheduleText, WeightGradientsFollowTheBackwardOfTheirMicroBatch) {
  const std::string text = text_of(Purpose::train, 2, {.delay_weight_gradients = true});
  EXPECT_EQ(of_op(text, "backward_weight") + of_op(text, "embed_backward"),
            R"(9	compute	backward_weight mb0 layer 1
10	compute	backward_weight mb0 layer 0
19	compute	backward_weight mb1 layer 1
20	compute	backward_weight mb1 layer 0
8	compute	embed_backward mb0
18	compute	embed_backward mb1
)");
  EXPECT_EQ(of_op(text, "grad_norm_partial"), R"(21	compute	grad_norm_partial flat 2	after 15
22	compute	grad_norm_partial flat 0	after 18
23	compute	grad_norm_partial flat 1	after 20
)");
}

// No reduction in micro-batch 0; weights are gathered again in each.
TEST(ScheduleText, LocalAccumulationReducesOnce) {
  const std::string text =
      text_of(Purpose::train, 2, {},
              {.gather = true, .reduce = true, .prefetch = 1, .accumulation = GradientAccumulation::local});
  EXPECT_EQ(of_op(text, "gather"), R"(2	gather	gather flat 0
3	gather	gather flat 1
5	gather	gather flat 2	after 4
8	gather	gather flat 1	after 7
10	gather	gather flat 0	after 9
15	gather	gather flat 1	after 12
17	gather	gather flat 2	after 16
20	gather	gather flat 1	after 19
)");
  EXPECT_EQ(of_op(text, "reduce"), R"(22	reduce	reduce mb1 flat 2	after 21
25	reduce	reduce mb1 flat 1	after 24
27	reduce	reduce mb1 flat 0	after 26
)");
}

}  // namespace schedule_test
}  // namespace hawser::step
