// A kernel that fails ends every kind of step with its error, whichever call the host waits with.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <stdexcept>

#include "base/testing/test_paths.h"
#include "batches/micro_batch.h"
#include "device/forwarding_device.h"
#include "engine/feed.h"
#include "engine/host_copy.h"
#include "engine/open_model.h"
#include "engine/session.h"
#include "plan/layout.h"

namespace hawser::engine {
namespace failed_kernel_test {

// The cpu device; while `broken`, the next op of a stream fails.
class BreakingDevice : public ForwardingDevice {
 public:
  BreakingDevice() : ForwardingDevice(make_cpu_device()) {}
  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<BreakingStream>(inner_->make_stream(name), *this);
  }
  bool broken = false;

 private:
  class BreakingStream : public ForwardingStream {
   public:
    BreakingStream(std::unique_ptr<Stream> inner, BreakingDevice& device)
        : ForwardingStream(std::move(inner)), device_(device) {}
    void launch(OpRecord record, std::function<void()> work) override {
      if (std::exchange(device_.broken, false)) work = [] { throw std::runtime_error("broken kernel"); };
      inner_->launch(std::move(record), std::move(work));
    }

   private:
    BreakingDevice& device_;
  };
};

struct Steps {
  explicit Steps(step::Purpose purpose) {
    Problems problems;
    open = open_trained_model((std::filesystem::path(testing::kSourceFolder) / "tests/golden/tiny/gqa").string(),
                              problems);
    HAWSER_CHECK(problems.empty(), problems.lines());
    Recipe recipe;
    recipe.data.sequence_length = 8;
    recipe.data.max_documents = 1;
    recipe.train.global_batch_size = recipe.train.micro_batch_size = 1;
    layout = plan::make_layout(recipe, *open.model, 1, DType::f32, 1, device.kind());
    session = std::make_unique<Session>(*open.model, layout, device, *mesh, std::vector<step::Purpose>{purpose});
    session->load(*open.weights, 0);
    session->synchronize();
    batches::Sequence sequence{.ids = {5, 6, 7, 8}, .document_lengths = {4}};
    sequence.labels = {6, 7, 8, -100};
    sequence.positions = batches::positions_of(sequence.document_lengths);
    const auto batch = to_host_batch(batches::make_micro_batch({&sequence, 1}, layout.batch, 0), layout.batch);
    if (purpose == step::Purpose::logits) batch->logit_positions = {3};
    input.record.inverse_targets = 1.0f / 3;
    input.batches.push_back(batch);
  }

  BreakingDevice device;
  OpenModel open;
  plan::Layout layout;
  std::unique_ptr<comm::Mesh> mesh = comm::make_self_mesh();
  std::unique_ptr<Session> session;
  step::StepInput input;
};

TEST(FailedKernel, EndsEveryKindOfStepWithItsError) {
  using Waiting = std::function<void(Steps&, const step::StepOutput&)>;
  const std::vector<std::pair<const char*, Waiting>> waits = {
      {"wait", [](Steps& run, const step::StepOutput& output) { run.session->wait(output.end); }},
      {"check",
       [](Steps& run, const step::StepOutput& output) {
         host_wait(output.end);
         run.session->check();
       }},
      {"synchronize", [](Steps& run, const step::StepOutput&) { run.session->synchronize(); }},
      {"copies", [](Steps& run, const step::StepOutput&) { HostCopy(*run.session).fetch(); }},
  };
  for (const step::Purpose purpose :
       {step::Purpose::train, step::Purpose::loss, step::Purpose::gradient_norms, step::Purpose::logits}) {
    for (const auto& [name, wait] : waits) {
      Steps run(purpose);
      run.session->wait(run.session->enqueue(purpose, run.input).end);
      run.device.broken = true;
      const step::StepOutput output = run.session->enqueue(purpose, run.input);
      EXPECT_FALSE(run.device.broken);
      EXPECT_THROW(wait(run, output), std::runtime_error) << name << " of purpose " << static_cast<int>(purpose);
    }
    Steps run(purpose);
    run.device.broken = true;
    EXPECT_THROW(run.session->run(purpose, run.input), std::runtime_error) << "run of " << static_cast<int>(purpose);
  }
}

}  // namespace failed_kernel_test
}  // namespace hawser::engine
