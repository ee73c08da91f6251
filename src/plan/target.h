// A kind of device: what it holds and how fast it is. targets/NAME.yaml describes one each; the shipped ones are built
// into the binary. targets/h200.yaml explains the keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/recipe.h"
#include "comm/mesh.h"

namespace hawser::plan {

struct AttentionRate {
  double forward = 0, backward = 0;  // FLOP/s
};

// FLOP/s for one compute dtype.
struct ComputeRates {
  double gemm = 0;
  AttentionRate attention;
};

struct Link {
  int ranks = 0;       // groups within so many neighbouring ranks use it; 0: any
  double rate = 0;     // bytes/s that leave one rank
  double latency = 0;  // seconds
};

struct Target {
  std::string name, about;
  bool cuda = false;
  std::int64_t capacity = 0;                   // bytes a rank; 0: the machine's memory, shared by its ranks
  std::int64_t context = 0, communicator = 0;  // bytes
  bool per_core = false;
  bool overlap = true;
  double launch = 0;  // seconds
  double copy = 0;    // bytes/s
  ComputeRates bf16, float32;
  std::vector<Link> links;

  const ComputeRates& rates(DType dtype) const { return dtype == DType::bf16 ? bf16 : float32; }
  // The link that carries a group whose members' ranks span [first, last].
  const Link& link(int first, int last) const;
};

// A shipped target's name, or a path to a file of the same form. Throws UserError: an unknown name with the nearest one
// offered, or everything that is wrong with the file.
Target load_target(const std::string& name_or_file);

std::vector<std::string> shipped_targets();
// The shipped target that stands for the devices a run of this build may use: "cpu" or "h200".
std::string target_of(DeviceKind device);

// What a target's text says; `file` names it in problems.
Target parse_target(const std::string& text, const std::string& file);

// precision.compute where it is given; else bf16 on CUDA and float32 on the CPU.
DType compute_dtype(const PrecisionRecipe& precision, DeviceKind device);
DType compute_dtype(const PrecisionRecipe& precision, const Target& target);

// The machine a rank runs on, as far as a plan must know it: used by targets that share or scale.
struct Machine {
  int cores = 1;
  std::int64_t memory = 0;  // bytes that its processes may use: the machine's, or less where a control group says so
  int ranks = 0;            // of the run that share it; 0: all of them
};
Machine this_machine();

// Bytes of this machine's memory that a process may still take, as the system counts them now.
std::int64_t free_host_memory();

// What a rank may use of a target: memory.capacity, else the target's, else its share of the machine's memory.
std::int64_t capacity_of(const Recipe& recipe, const Target& target, const Machine& machine, int world);

// Bytes of a rank beyond its plan: the context, and a communicator for each of its groups of two or more.
std::int64_t overhead_of(const Target& target, const MeshSizes& mesh);

}  // namespace hawser::plan
