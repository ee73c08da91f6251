// Benchmark of the host's work to enqueue a training step: microseconds an instruction.
//
//   ninja bench_enqueue && ./bench_enqueue [part of a line's name]
//
// host: until the last instruction is enqueued. ended: until the device has done it all.
// none: a device that drops all work, so only the executor and the layers are measured, with the groups of a mesh that
// do nothing. cuda (in a build with CUDA): one GPU and the calls of its driver and libraries; tensors are so small that
// the GPU does not hold up the host. Each number is the median of kSteps steps; a step begins on an idle device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "batches/batch_loader.h"
#include "comm/mesh.h"
#include "device/forwarding_device.h"
#include "engine/feed.h"
#include "engine/session.h"
#include "models/families.h"
#include "profile/synthetic.h"

namespace hawser {
namespace {

constexpr int kSteps = 51;

// Drops all work, at once.
class NoStream : public ForwardingStream {
 public:
  using ForwardingStream::ForwardingStream;
  void launch(OpRecord, std::function<void()>) override {}
  void call_host(OpRecord, std::function<void()>) override {}
  Event record_event() override { return {}; }
  void wait(const Event&) override {}
};

class NoDevice : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Stream> make_stream(const std::string& name) override {
    return std::make_unique<NoStream>(inner_->make_stream(name));
  }
};

struct Case {
  const char* name;
  const char* config;
  Checkpointing checkpointing = Checkpointing::none;
  comm::MeshSizes mesh = {};
  int micro_batches = 1;
};

const char* const kLlama =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 32,
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 512,
        "max_position_embeddings": 8192})";
const char* const kMixtral =
    R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 32,
        "num_experts_per_tok": 2, "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02, "output_router_logits": true, "tie_word_embeddings": false, "vocab_size": 512,
        "max_position_embeddings": 8192})";

const Case kCases[] = {
    {"Llama, 32 layers", kLlama},
    {"Llama, 32 layers, full checkpointing", kLlama, Checkpointing::full},
    {"Llama, 32 layers, 8 shards", kLlama, Checkpointing::none, {.shard = 8}},
    {"Llama, 32 layers, 4 shards, context 2, 4 micro-batches",
     kLlama,
     Checkpointing::none,
     {.context = 2, .shard = 4},
     4},
    {"Mixtral, 32 layers", kMixtral},
    {"Mixtral, 32 layers, 4 micro-batches", kMixtral, Checkpointing::none, {}, 4},
};

models::Model model_of(const char* config) {
  Problems problems;
  models::ModelDescription description = models::describe_config(config, "config.json", problems);
  problems.throw_if_any();
  return models::Model(std::move(description));
}

plan::LayoutChoices layout_of(const Case& one, const models::Model& model, DeviceKind device) {
  plan::LayoutChoices layout;
  layout.device = device;
  layout.mesh = one.mesh;
  layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::bf16;
  layout.head_groups = device == DeviceKind::cuda ? plan::kCudaHeadGroups : 1;
  layout.batch_sizes = {.sequences = 1,
                        .sequence_length = 128 * one.mesh.context,
                        .max_documents = 1,
                        .context = one.mesh.context,
                        .chunks_per_rank = one.mesh.context == 1 ? 1 : 2};
  layout.micro_batches = one.micro_batches;
  layout.policies.assign(static_cast<std::size_t>(model.layers()), {.checkpointing = one.checkpointing});
  return layout;
}

step::StepInput input_of(const plan::LayoutChoices& layout, const models::Model& model) {
  const std::int64_t batch = layout.batch_sizes.sequences * layout.micro_batches * layout.data_ranks();
  const batches::BatchLoader loader(
      profile::synthetic_sequences({}, batch, layout.batch_sizes.sequence_length, 1, model.vocabulary()),
      plan::derive(layout, model).batch,
      {.data_rank = 0, .data_ranks = layout.data_ranks(), .context_rank = 0, .context_ranks = layout.mesh.context},
      {.global_batch_size = batch, .shuffle = false});
  step::StepInput input{.record = {.learning_rate = 1e-5F, .step = 1, .inverse_targets = 1e-4F}};
  for (std::int64_t m = 0; m < loader.micro_batches(); ++m) {
    input.batches.push_back(engine::to_host_batch(loader.load(0, m), loader.shape()));
  }
  return input;
}

void measure(const Case& one, const char* name, Device& device) {
  const models::Model model = model_of(one.config);
  const plan::LayoutChoices layout = layout_of(one, model, device.kind());
  const std::unique_ptr<comm::Mesh> mesh = comm::make_meta_mesh(layout.mesh, Rank(0));
  engine::Session session(model, plan::derive(layout, model), device, *mesh, {step::Purpose::train});
  session.initialise(1);
  const step::StepInput input = input_of(layout, model);
  std::vector<double> seconds, ended;
  const auto since = [](std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (int i = 0; i < kSteps; ++i) {
    session.synchronize();
    const auto start = std::chrono::steady_clock::now();
    session.enqueue(step::Purpose::train, input);
    seconds.push_back(since(start));
    session.synchronize();
    ended.push_back(since(start));
  }
  std::ranges::sort(seconds);
  std::ranges::sort(ended);
  const auto instructions = session.plan(step::Purpose::train).program.instructions.size();
  const double median = seconds[kSteps / 2];
  std::printf("%-5s %-56s %6zu instructions  host %7.3f ms, ended %7.3f ms  %6.2f us an instruction\n", name, one.name,
              instructions, 1e3 * median, 1e3 * ended[kSteps / 2], 1e6 * median / static_cast<double>(instructions));
  std::fflush(stdout);
}

}  // namespace
}  // namespace hawser

int main(int argc, char** argv) {
  using namespace hawser;
  const std::string part = argc > 1 ? argv[1] : "";
  for (const Case& one : kCases) {
    if (std::string(one.name).find(part) == std::string::npos) continue;
    NoDevice none(make_cpu_device());
    measure(one, "none", none);
    if (cuda_info().devices == 0 || one.mesh.context * one.mesh.shard > 1) continue;
    const std::unique_ptr<Device> gpu = make_cuda_device();
    measure(one, "cuda", *gpu);
  }
}
