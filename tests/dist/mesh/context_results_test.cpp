// Outputs and gradients of attention on context ranks, element by element: of an all-to-all over heads they are one
// rank's bit for bit, of a ring they differ by rounding, in bf16 at most twice as much as those of gathered keys.
#include <fmt/format.h>

#include "nn/blocks/attention_parts.h"
#include "support/exchange_batch.h"
#include "toy_training.h"

namespace hawser {
namespace context_results_test {

using nn::AttentionPart;
using nn::AttentionTensors;
using nn::testing::TestContext;

constexpr std::int64_t kHeads = 8, kKvHeads = 4, kHeadDim = 6;

enum class Form { one_rank, all_gather, ring, all_to_all, hybrid };

// By row: number of its sequence, index in it.
using RowId = std::pair<int, int>;
using Rows = std::map<RowId, std::vector<float>>;

struct Results {
  Rows o, dq, dk, dv;
  std::map<std::string, const Rows*> named() const { return {{"o", &o}, {"dq", &dq}, {"dk", &dk}, {"dv", &dv}}; }
};

// Exact in bf16, of a row and head of the whole run.
double value_of(const std::string& name, const std::int32_t* row_id, std::int64_t element) {
  const RandomStream random(std::hash<std::string>()(name), static_cast<std::uint64_t>(row_id[0] * 10000 + row_id[1]));
  return static_cast<double>(random.below(129, static_cast<std::uint64_t>(element))) / 64.0 - 1.0;
}

// What AttentionCall::blocks promises of the segments.
void expect_in_blocks(const AttentionPart& part) {
  if (part.blocks.empty()) return;
  ASSERT_FALSE(!part.largest.empty() && part.largest.size() < part.blocks.size());
  const auto* rows = part.segments.data<std::int32_t>();
  std::set<std::pair<std::size_t, std::int64_t>> used;
  for (std::int32_t s = 0; s < *part.segment_count.data<std::int32_t>(); ++s) {
    const std::int32_t* segment = rows + 6 * s;
    if (segment[1] == 0) continue;
    int in = 0;
    for (std::size_t b = 0; b < part.blocks.size(); ++b) {
      const ops::StridedBlocks& block = part.blocks[b];
      for (std::int64_t i = 0; i < block.count; ++i) {
        if (segment[0] != block.q_begin + i * block.q_step || segment[2] != block.k_begin + i * block.k_step) continue;
        ++in;
        EXPECT_TRUE(used.insert({b, i}).second) << "two segments in a block";
        EXPECT_LE(segment[1], block.q_rows);
        if (part.form != ops::SegmentForm::diagonal) {
          EXPECT_EQ(segment[3], block.k_rows);
        }
      }
      if (part.largest.empty()) continue;
      const ops::StridedBlocks& bound = part.largest[b];
      EXPECT_TRUE(block.count <= bound.count && block.q_rows <= bound.q_rows && block.k_rows <= bound.k_rows);
    }
    EXPECT_EQ(in, 1) << "segment " << segment[0] << ", " << segment[2];
  }
}

class Attention {
 public:
  Attention(const plan::Layout& layout, comm::Mesh& mesh, nn::AttentionExchange& exchange, const AttentionMask& mask,
            DType dtype, double delay_s)
      : device_(rank_device({.threads = 1, .random_delay_s = delay_s})),
        ctx_(*device_, dtype),
        batch_(layout, mesh.coordinate(), ctx_),
        exchange_(exchange),
        mask_(mask) {}

  Results run() {
    AttentionTensors t{.q = values("q", kHeads), .k = values("k", kKvHeads), .v = values("v", kKvHeads)};
    t.o = ctx_.make(ctx_.dtype(), t.q.shape());
    t.lse = ctx_.make(DType::f32, {kHeads, t.q.size(0)});
    const auto call_of = [](const AttentionPart& part) {
      expect_in_blocks(part);
      ops::AttentionCall call = nn::operands_of(part);
      call.scale = 0.7;
      return call;
    };
    const auto forward = exchange_.begin(ctx_, mask_, t);
    nn::attend(ctx_, *forward, call_of);
    forward->finish_queries();
    t.d_o = values("d_o", kHeads);
    t.dq = ctx_.make(ctx_.dtype(), t.q.shape());
    t.dk = ctx_.make(ctx_.dtype(), t.k.shape());
    t.dv = ctx_.make(ctx_.dtype(), t.k.shape());
    const auto backward = exchange_.begin(ctx_, mask_, t);
    nn::attend_backward(ctx_, *backward, call_of);
    backward->finish_queries();
    backward->finish_keys();
    ctx_.finish();
    return {rows_of(t.o), rows_of(t.dq), rows_of(t.dk), rows_of(t.dv)};
  }

 private:
  TensorView values(const std::string& name, std::int64_t heads) {
    const TensorView& ids = ctx_.batch().row_ids;
    std::vector<double> values;
    for (std::int64_t row = 0; row < ids.size(0); ++row) {
      for (std::int64_t i = 0; i < heads * kHeadDim; ++i) {
        values.push_back(value_of(name, ids.data<std::int32_t>() + 2 * row, i));
      }
    }
    return ctx_.make(ctx_.dtype(), {ids.size(0), heads, kHeadDim}, values);
  }

  // Without padding, which has no label, position or document.
  Rows rows_of(const TensorView& x) const {
    const std::vector<double> values = nn::testing::get(x.reshape({x.size(0), x.size(1) * x.size(2)}));
    const std::int32_t* ids = ctx_.batch().row_ids.data<std::int32_t>();
    const std::int32_t* tokens = ctx_.batch().token_mask.data<std::int32_t>();
    const std::int64_t width = x.size(1) * x.size(2);
    Rows out;
    for (std::int64_t row = 0; row < x.size(0); ++row) {
      if (tokens[row] == 0) continue;
      const auto begin = values.begin() + row * width;
      out[{ids[2 * row], ids[2 * row + 1]}] = {begin, begin + width};
    }
    return out;
  }

  std::shared_ptr<Device> device_;
  TestContext ctx_;
  testing::ExchangeBatch batch_;
  nn::AttentionExchange& exchange_;
  AttentionMask mask_;
};

struct ResultsCase {
  Form form = Form::ring;
  bool packed = true, by_work = false;
  int delayed = -1;  // the rank whose ops begin up to 50 ms late

  int heads() const {
    const int world = the_world->size();
    return form == Form::all_to_all ? world : form == Form::hybrid ? world / 2 : 1;
  }
  std::string name() const {
    constexpr const char* kNames[] = {"one_rank", "all_gather", "ring", "all_to_all", "hybrid"};
    return testing::joined(kNames[static_cast<int>(form)], testing::name_if(packed, "packed"),
                           testing::name_if(by_work, "by_work"),
                           testing::name_if(delayed >= 0, cat("delayed", delayed)));
  }
  friend void PrintTo(const ResultsCase& c, std::ostream* out) { *out << c.name(); }
};

// A model whose layers have the mask, so that batches have its tables.
models::Model model_of(const AttentionMask& mask) {
  models::ModelDescription description = testing::toy_description();
  for (models::BlockDescription& block : description.blocks) {
    block.attention.causal = mask.causal;
    block.attention.window = mask.window;
  }
  return models::Model(description);
}

Results results_of(const ResultsCase& c, const AttentionMask& mask, DType dtype) {
  const models::Model model = model_of(mask);
  const bool one = c.form == Form::one_rank;
  const comm::MeshSizes sizes =
      one ? comm::MeshSizes{} : comm::MeshSizes{.context = the_world->size(), .context_heads = c.heads()};
  plan::LayoutChoices choices =
      testing::toy_layout({.mesh = sizes, .packed = c.packed, .by_work = c.by_work && !one}, model);
  choices.batch_sizes.together = 1;
  choices.ring_attention = c.form == Form::ring || c.form == Form::hybrid;
  choices.batch_sizes.source_segments = choices.ring_attention;
  choices.kv_reduce_dtype = dtype;
  choices.head_groups = 2;
  const plan::Layout layout = plan::derive(choices, model);
  const auto mesh = one ? comm::make_self_mesh() : rank_mesh(layout.mesh);
  const nn::Seams seams = plan::make_seams(layout, *mesh);
  const double delay_s = c.delayed == the_world->rank().value() ? 0.05 : 0;
  return Attention(layout, *mesh, *seams.attention, mask, dtype, delay_s).run();
}

// Of all ranks: the norm of the difference over that of the reference.
double distance(const Rows& rows, const Rows& reference) {
  double difference = 0, norm = 0;
  for (const auto& [id, values] : rows) {
    const std::vector<float>& expected = reference.at(id);
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{values[i]} - expected[i], 2);
      norm += std::pow(double{expected[i]}, 2);
    }
  }
  double all_difference = 0, all_norm = 0;
  for (const std::string& text : the_world->all_gather_strings(fmt::format("{:.17g} {:.17g}", difference, norm))) {
    all_difference += std::stod(text);
    all_norm += std::stod(text.substr(text.find(' ')));
  }
  return std::sqrt(all_difference / all_norm);
}

std::vector<AttentionMask> masks() {
  const std::int64_t chunk = ceil_div(testing::kToyLength, std::int64_t{2} * the_world->size());
  std::vector<AttentionMask> out{{}, {.causal = false}, {.causal = false, .window = 7}};
  for (const std::int64_t window : {std::int64_t{1}, std::int64_t{7}, chunk, chunk + 1, testing::kToyLength + 1}) {
    out.push_back({.window = window});
  }
  return out;
}

using ContextResults = testing::CaseTest<ResultsCase>;

TEST_P(ContextResults, AreThoseOfOneRank) {
  const ResultsCase& c = GetParam();
  for (const AttentionMask& mask : masks()) {
    SCOPED_TRACE(testing::name_of(mask));
    const ResultsCase one_rank{.form = Form::one_rank, .packed = c.packed};
    const Results ours = results_of(c, mask, DType::f32), one = results_of(one_rank, mask, DType::f32);
    const bool has_keys = kKvHeads % c.heads() == 0;
    for (const auto& [name, rows] : ours.named()) {
      const Rows& expected = *one.named().at(name);
      if (c.form == Form::all_to_all && (has_keys || name == "o" || name == "dq")) {
        for (const auto& [id, values] : *rows) EXPECT_EQ(values, expected.at(id)) << name << " of row " << id.second;
      } else if (mask.window != 1 || name == "o" || name == "dv") {  // the other gradients are zero
        EXPECT_LT(distance(*rows, expected), 1e-6) << name;
      }
    }
    const ResultsCase gathered{.form = Form::all_gather, .packed = c.packed, .by_work = c.by_work};
    const Results exact = results_of(one_rank, mask, DType::f32), rounded = results_of(c, mask, DType::bf16),
                  other = results_of(gathered, mask, DType::bf16);
    for (const auto& [name, rows] : rounded.named()) {
      if (mask.window == 1 && name != "o" && name != "dv") continue;
      const Rows& expected = *exact.named().at(name);
      const double error = distance(*rows, expected), of_gathered = distance(*other.named().at(name), expected);
      EXPECT_LE(error, 2 * of_gathered + 1e-9) << name;
      EXPECT_LT(of_gathered, 0.02) << name;
    }
  }
}

std::vector<ResultsCase> results() {
  std::vector<ResultsCase> out;
  const int world = the_world->size();
  if (world == 1) return out;
  for (const Form form : {Form::ring, Form::all_to_all, Form::hybrid}) {
    if (form == Form::hybrid && world < 4) continue;
    out.push_back({form, true, true});
    out.push_back({form, false, false});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Forms, ContextResults, ::testing::ValuesIn(results()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ContextResults);

// A rank that is late in both directions, with what it sends and with what it takes, delays the others and changes
// nothing.
using DelayedContext = testing::CaseTest<ResultsCase>;

TEST_P(DelayedContext, HasTheSameResults) {
  ResultsCase in_time = GetParam();
  in_time.delayed = -1;
  const Results delayed = results_of(GetParam(), {}, DType::f32), expected = results_of(in_time, {}, DType::f32);
  for (const auto& [name, rows] : delayed.named()) EXPECT_EQ(*rows, *expected.named().at(name)) << name;
}

std::vector<ResultsCase> delayed() {
  std::vector<ResultsCase> out;
  const int world = the_world->size();
  if (world == 1 || world > 4) return out;
  for (const Form form : {Form::all_gather, Form::ring, Form::all_to_all, Form::hybrid}) {
    if (form == Form::hybrid && world < 4) continue;
    for (const int rank : {0, world - 1}) out.push_back({.form = form, .delayed = rank});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Forms, DelayedContext, ::testing::ValuesIn(delayed()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DelayedContext);

}  // namespace context_results_test
}  // namespace hawser
