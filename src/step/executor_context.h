// `Executor::Impl::Context`, `Executor::Impl::Sink`: the executor as a layer sees it in one instruction. Internal to
// step/.
#pragma once

#include "ops/copy/copy.h"
#include "step/executor_impl.h"

namespace hawser::step {

// Returns the gradient targets of one instruction's parameters.
class Executor::Impl::Sink : public nn::GradientSink {
 public:
  Sink(Impl& executor, const program::Instruction& instruction)
      : executor_(executor), instruction_(instruction), places_(executor.params_of(instruction)) {}

  nn::GradientTarget target(int param) override {
    const BoundGradient& gradient = executor_.gradient(instruction_, places_[static_cast<std::size_t>(param)], param);
    for (const TensorView& zeroed : gradient.zeroed) {
      ops::fill(executor_.stream(instruction_.stream), {.y = zeroed});
    }
    return gradient.target;
  }

 private:
  Impl& executor_;
  const program::Instruction& instruction_;
  const std::vector<models::ParamIndex>& places_;
};

class Executor::Impl::Context : public nn::LayerContext {
 public:
  Context(Impl& executor, const program::Instruction& instruction)
      : executor_(executor),
        instruction_(instruction),
        batch_(executor.batch_views(instruction.micro_batch)),
        weights_(executor.bound(instruction).weights) {}

  TensorView temp(DType dtype, const Shape& shape) override { return executor_.temp(instruction_, dtype, shape); }
  Stream& compute() override { return executor_.stream(instruction_.stream); }
  Stream& exchange() override { return executor_.stream(program::StreamId::exchange); }
  const nn::BatchViews& batch() const override { return batch_; }
  nn::RowCounts rows() const override { return executor_.setup_.bounds.row_counts(); }
  const nn::Seams& seams() const override { return executor_.setup_.seams; }
  const nn::Scaled& parameter(int param) const override { return weights_[static_cast<std::size_t>(param)]; }
  nn::RopeViews rope(int i) const override { return executor_.setup_.state->rope(i); }
  TensorView alibi_slopes() const override {
    HAWSER_CHECK(instruction_.layer >= 0, "ALiBi slopes of an instruction without a layer");
    return executor_.setup_.state->alibi_slopes(instruction_.layer);
  }
  const nn::TrainableParams& trainable() const override {
    const models::Model& model = *executor_.setup_.model;
    if (instruction_.op == program::Op::loss_gradient) return model.trainable_of_head();
    HAWSER_CHECK(instruction_.layer >= 0, "trainable parameters of an instruction without a layer");
    return model.trainable(instruction_.layer);
  }
  DType dtype() const override { return executor_.setup_.compute; }
  int threads() const override { return executor_.setup_.threads; }
  bool deterministic() const override { return executor_.setup_.deterministic; }
  bool training() const override { return executor_.trains(); }
  ops::RandomKey random(nn::Site site, int index) const override {
    const auto name = cat("layer ", instruction_.layer, " site ", static_cast<int>(site), " index ", index);
    return {.key = RandomStream(executor_.setup_.seed, name).key(),
            .step = executor_.setup_.state->record().field(&StepRecord::step),
            .rows = batch_.row_ids};
  }
  nn::Quantization quantization(nn::Site site, nn::Operand operand) const override {
    return executor_.quantization(instruction_, site, operand);
  }
  nn::AuxiliaryViews auxiliary() const override { return executor_.auxiliary_views(instruction_); }
  TensorView refusal() const override { return executor_.setup_.state->result().field(&StepResult::refusal); }
  nn::KvCache kv_cache() const override {
    return instruction_.layer < 0 ? nn::KvCache() : executor_.setup_.state->kv_cache(instruction_.layer);
  }

 private:
  Impl& executor_;
  const program::Instruction& instruction_;
  const nn::BatchViews& batch_;
  const std::vector<nn::Scaled>& weights_;
};

}  // namespace hawser::step
