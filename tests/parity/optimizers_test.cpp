// Every optimizer.kind takes the steps of PyTorch, transformers and bitsandbytes: tests/golden/optimizers, which
// tools/golden/make_optimizers.py writes.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/philox.h"
#include "base/testing/test_paths.h"
#include "checkpoint/formats/safetensors.h"
#include "config/config.h"
#include "nn/granularity.h"
#include "ops/adamw_8bit/code_book.h"
#include "plan/make_optimizer.h"
#include "tensor/dtype_dispatch.h"

namespace hawser {
namespace optimizers_test {

const std::string kFolder = std::string(testing::kSourceFolder) + "/tests/golden/optimizers/";

nlohmann::json read_golden(const std::string& name) {
  std::ifstream in(kFolder + name);
  return nlohmann::json::parse(in);
}

// The words of Philox that gradients and weights are made of.
PhiloxWords words_of(int tensor, std::int64_t element, int step) {
  return philox({static_cast<std::uint32_t>(element), 0, static_cast<std::uint32_t>(step), 0},
                {17, static_cast<std::uint32_t>(tensor)});
}
float fraction(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
}

std::vector<nn::Param> params() {
  const nn::Initial zeros;
  return {nn::full_param("matrix", {48, 96}, zeros, true), nn::full_param("tall", {80, 16}, zeros, true),
          nn::full_param("norm", {96}, zeros, false)};
}
int number_of(const std::string& name) {
  const std::vector<nn::Param> all = params();
  return static_cast<int>(std::ranges::find(all, name, &nn::Param::name) - all.begin());
}

using Numbers = std::vector<double>;
using Named = std::map<std::string, Numbers>;

// A rank that has all of a flat, and runs the phases of its update as the executor does.
class OneRank {
 public:
  OneRank(const nn::Flat& flat, std::shared_ptr<const optim::Optimizer> optimizer, std::uint64_t seed)
      : flat_(flat), optimizer_(std::move(optimizer)), seed_(seed) {
    count_ = flat_.total(1);
    weights_ = make(flat_.spec().stored_in(DType::f32), count_);
    gradient_ = make(DType::f32, count_);
    for (const optim::StateSlot& slot : optimizer_->slots(flat_)) {
      slots_.push_back(make(slot.dtype, nn::value_count(flat_, slot.granularity, count_)));
    }
    scalars_ = make(DType::f32, optimizer_->scalars());
    kept_ = make(DType::f32, optim::kKeptScalars);
    rate_ = make(DType::f32, optim::kGroups);
    coefficient_ = make(DType::f32, 1);
    skip_ = make(DType::i32, 1);
    step_ = make(DType::i32, 1);
    *coefficient_.data<float>() = 1;
    each_element([&](int tensor, std::int64_t element, std::int64_t at) {
      const float value = fraction(words_of(tensor, element, 0)[1]);
      if (weights_.dtype() == DType::f32) weights_.data<float>()[at] = value;
      if (weights_.dtype() == DType::bf16) weights_.data<Bf16>()[at] = Bf16(value);
    });
  }

  void step(int number, double rate) {
    each_element([&](int tensor, std::int64_t element, std::int64_t at) {
      const float scale = static_cast<float>(1 << element % 5);
      gradient_.data<float>()[at] = fraction(words_of(tensor, element, number)[0]) / scale;
    });
    std::fill_n(rate_.data<float>(), optim::kGroups, static_cast<float>(rate));
    *step_.data<std::int32_t>() = number;
    optimizer_->prepare(*stream_,
                        {.learning_rate = rate_, .step = step_, .skip = skip_, .kept = kept_, .scalars = scalars_});
    const std::vector<optim::Phase> phases = optimizer_->phases(flat_);
    optim::Exchanged received;
    for (std::size_t phase = 0; phase < phases.size(); ++phase) {
      optim::Exchanged sent;
      const optim::Phase& of = phases[phase];
      if (of.sums > 0) sent.sums = make(DType::f32, of.sums);
      if (of.gathers) sent.shard = make(*of.gathers, count_);
      if (of.scatters) sent.flat = make(*of.scatters, count_);
      optimizer_->update(*stream_, {.flat = flat_,
                                    .begin = 0,
                                    .count = count_,
                                    .phase = static_cast<int>(phase),
                                    .weights = weights_,
                                    .gradient = gradient_,
                                    .slots = slots_,
                                    .scalars = scalars_,
                                    .coefficient = coefficient_,
                                    .skip = skip_,
                                    .seed = seed_,
                                    .step = step_,
                                    .updates = step_,
                                    .received = received,
                                    .sent = sent,
                                    .temp = [&](DType dtype, const Shape& shape) {
                                      return make(dtype, shape.elements()).reshape(shape);
                                    }});
      stream_->synchronize();
      received = {.sums = sent.sums, .shard = sent.flat, .flat = sent.shard};  // one rank has all
    }
  }

  void add_to(Named& out) const {
    add(out, "weights/", {}, weights_);
    const std::vector<optim::StateSlot> slots = optimizer_->slots(flat_);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      add(out, "state/" + slots[i].name + "/", slots[i].granularity, slots_[i]);
    }
  }

 private:
  TensorView make(DType dtype, std::int64_t count) {
    memory_.push_back(std::make_unique<Storage>(*device_, dtype, Shape{count}));
    const TensorView view = memory_.back()->view();
    std::memset(view.raw(), 0, static_cast<std::size_t>(view.bytes()));
    return view;
  }
  template <class Visit>
  void each_element(const Visit& visit) {
    for (std::size_t p = 0; p < flat_.params().size(); ++p) {
      const nn::Param& param = flat_.params()[p];
      for (std::int64_t i = 0; i < param.elements(); ++i) {
        visit(number_of(param.name), i, flat_.offset(static_cast<int>(p)) + i);
      }
    }
  }
  void add(Named& out, const std::string& prefix, const nn::Granularity& granularity, const TensorView& view) const {
    for (const NamedState& state : nn::value_states(flat_, granularity, 0, count_, view, prefix, true)) {
      Numbers& values = out[state.name];
      for (const Box& box : state.boxes) {
        for (std::int64_t i = 0; i < box.view.elements(); ++i) {
          if (view.dtype() == DType::u8) {
            values.push_back(box.view.data<std::uint8_t>()[i]);
          } else {
            values.push_back(dispatch_float(view.dtype(), [&](auto tag) -> double {
              return static_cast<float>(box.view.data<decltype(tag)>()[i]);
            }));
          }
        }
      }
    }
  }

  const nn::Flat& flat_;
  std::shared_ptr<const optim::Optimizer> optimizer_;
  std::uint64_t seed_;
  std::int64_t count_ = 0;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream("compute");
  std::vector<std::unique_ptr<Storage>> memory_;
  TensorView weights_, gradient_, scalars_, kept_, rate_, coefficient_, skip_, step_;
  std::vector<TensorView> slots_;
};

// Replaces codes and maxima by their numbers.
void decode(Named& states) {
  for (const char* const slot : {"exp_avg", "exp_avg_sq"}) {
    const DynamicMap& book = std::string(slot) == "exp_avg" ? kSignedDynamicMap : kUnsignedDynamicMap;
    for (const nn::Param& param : params()) {
      const auto maxima = states.find(cat("state/", slot, "_absmax/", param.name));
      if (maxima == states.end()) continue;
      Numbers& values = states.at(cat("state/", slot, "/", param.name));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = book[static_cast<std::size_t>(values[i])] * maxima->second[i / 256];
      }
      states.erase(maxima);
    }
  }
}

Named after_steps(const std::vector<std::string>& keys, const nlohmann::json& golden) {
  const Recipe recipe = override_recipe(Recipe(), keys);
  std::vector<nn::Unit> units;
  std::vector<nn::Flat> flats;
  nn::add_unit("block 0", {nn::UnitId::Kind::block, 0}, params(),
               plan::with_optimizer(nn::common_domain, recipe.optimizer), units, flats);
  Named out;
  for (const nn::Flat& flat : flats) {
    OneRank rank(flat, plan::make_optimizer(recipe.optimizer), golden.at("seed"));
    for (int step = 1; step <= golden.at("steps").get<int>(); ++step) rank.step(step, golden.at("learning_rate"));
    rank.add_to(out);
  }
  decode(out);
  // transformers computes the mean of the rows anew.
  std::erase_if(out, [](const auto& state) { return state.first.starts_with("state/exp_avg_sq_mean/"); });
  return out;
}

double norm(const Numbers& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}
double distance(const Numbers& a, const Numbers& b) {
  Numbers differences;
  for (std::size_t i = 0; i < b.size(); ++i) differences.push_back(a.at(i) - b[i]);
  return norm(differences);
}

TEST(Optimizers, TakeTheStepsOfOtherLibraries) {
  const nlohmann::json golden = read_golden("cases.json");
  for (const nlohmann::json& c : golden.at("cases")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    const Named got = after_steps(c.at("keys"), golden);
    Problems problems;
    auto expected = checkpoint::SafetensorsFolder::open(kFolder + c.at("name").get<std::string>(), problems);
    problems.throw_if_any();
    EXPECT_EQ(got.size(), expected->names().size());
    for (const std::string& name : expected->names()) {
      const checkpoint::TensorInfo& info = *expected->find(name);
      std::vector<float> bytes(static_cast<std::size_t>(info.shape.elements()));
      expected->read_bytes(name, 0, reinterpret_cast<std::byte*>(bytes.data()), info.bytes);
      ASSERT_TRUE(got.contains(name)) << name;
      ASSERT_EQ(got.at(name).size(), bytes.size()) << name;
      const Numbers values(bytes.begin(), bytes.end());
      EXPECT_GT(norm(values), 0) << name;
      EXPECT_LE(distance(got.at(name), values), c.at("tolerance").get<double>() * norm(values)) << name;
    }
  }
}

TEST(Optimizers, HaveTheCodeBooksOfBitsandbytes) {
  const nlohmann::json golden = read_golden("code_books.json");
  const auto book = [&](const char* name) {
    DynamicMap out;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(golden.at(name).at(i).get<double>());
    return out;
  };
  EXPECT_EQ(kSignedDynamicMap, book("signed"));
  EXPECT_EQ(kUnsignedDynamicMap, book("unsigned"));
}

}  // namespace optimizers_test
}  // namespace hawser
