// Compares a rank's peak memory (VmHWM of the operating system) with its plan, on any number of ranks: within 5% of the
// plan plus the constant of targets/cpu.yaml. The constant covers the program and its libraries (17 MB at startup), the
// pages of MPI's shared memory, and memory that oneDNN and OpenMP keep: generated code, packed panels, stacks.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "comm/mpi/world.h"
#include "plan/target.h"
#include "support.h"

namespace hawser {
namespace {

// A value of /proc/self/status, in bytes.
std::int64_t status(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// `size`: "medium" checks the bound; "tiny" and "smollm2" only print.
bool run(comm::World& world, const std::string& size) {
  testing::Sizes sizes{
      .width = 512, .heads = 8, .kv_heads = 4, .head_dim = 64, .inner = 1408, .vocabulary = 8192, .blocks = 8};
  if (size == "tiny") sizes = {};
  if (size == "smollm2") sizes = testing::smollm2_sizes();
  const models::Model model(testing::llama_description(sizes));
  testing::LayoutOptions options{
      .mesh = {.context = world.size() == 4 ? 2 : 1, .shard = world.size() == 4 ? 2 : world.size()},
      .length = world.size() == 4 ? 1024 : 512};
  const plan::LayoutChoices layout = testing::make_test_layout(options, model);
  const auto mesh = world.size() > 1 ? comm::make_mpi_mesh(world, layout.mesh, 60.0) : comm::make_self_mesh();
  const std::int64_t before = status("VmRSS");
  const auto device = make_cpu_device();
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
  testing::Steps steps(session);
  for (int step = 0; step < 3; ++step) steps.run(step::Purpose::train);
  const std::int64_t peak = status("VmHWM"), plan = session.planned_bytes();
  const std::int64_t constant = plan::load_target("cpu").context;
  const double expected = static_cast<double>(plan + constant);
  const bool sound = size != "medium" || std::abs(static_cast<double>(peak) - expected) <= 0.05 * expected;
  std::ostringstream line;
  line.precision(1);
  line << std::fixed << "rank " << world.rank().value() << " of " << world.size() << ": plan " << plan / 1e6
       << " MB, VmHWM " << peak / 1e6 << " MB, beyond the plan " << (peak - plan) / 1e6 << " MB (" << before / 1e6
       << " MB before the session, constant " << constant / 1e6 << " MB)" << (sound ? "" : ": out of bounds") << "\n";
  std::fputs(line.str().c_str(), stdout);
  return sound;
}

}  // namespace
}  // namespace hawser

int main(int argc, char** argv) {
  hawser::comm::World world(60.0);
  return world.any(!hawser::run(world, argc > 1 ? argv[1] : "medium")) ? 1 : 0;
}
