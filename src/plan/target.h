// `Target`: memory and rates of a kind of device. Each targets/NAME.yaml describes one; the shipped ones are built into
// the binary. targets/h200.yaml explains the keys.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "comm/mesh.h"
#include "config/recipe.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::plan {

// Of an NVIDIA GPU: "8.9" is {8, 9}.
struct ComputeCapability {
  int major = 0, minor = 0;

  auto operator<=>(const ComputeCapability&) const = default;
  std::string text() const;
};
inline constexpr ComputeCapability kFirstWithBf16{8, 0}, kFirstWithFp8{8, 9};
// cuBLASLt's FP8 GEMMs with a scale for each block of 128 (ops/gemm/gemm.h).
inline constexpr ComputeCapability kWithBlockScales{9, 0};

// What plans say of a target with `never_run`.
inline constexpr char kNeverRun[] = "never run on this hardware: the rates are from data sheets";

struct AttentionRate {
  double forward = 0, backward = 0;  // FLOP/s
};

// FLOP/s for one compute dtype.
struct ComputeRates {
  double gemm = 0;
  AttentionRate attention;
};

struct Link {
  int ranks = 0;       // used by groups within a block of this many consecutive ranks. The last link has 0: any group.
  double rate = 0;     // bytes/s sent by one rank
  double latency = 0;  // seconds
  bool assumed = false;     // not measured
  bool peer_access = true;  // its GPUs read each other's memory
};

// The host of a device: its link, whose directions have the rate at the same time, and its memory.
struct TargetHost {
  double rate = 0;           // bytes/s. It is 0 if they have one memory: a transfer is then a copy in it.
  double latency = 0;        // minimum seconds of a transfer
  bool assumed = false;      // the rate is not measured
  std::int64_t memory = 0;   // bytes that the ranks of a machine share. It is 0 if it is not known.
  std::int64_t process = 0;  // bytes of host memory of a rank's process, besides pinned buffers
};

struct Target {
  std::string name, about;
  bool cuda = false;
  std::optional<ComputeCapability> compute_capability;  // of a GPU; none: a file that does not say it
  bool never_run = false;                               // Hawser never ran on this hardware
  std::int64_t capacity = 0;                   // bytes per rank. It is 0 if the ranks share the machine's memory.
  std::int64_t context = 0, communicator = 0;  // bytes
  bool per_core = false;
  bool overlap = true;
  double launch = 0;  // seconds
  double copy = 0;    // bytes/s
  TargetHost host;
  ComputeRates bf16, float32;
  double peak = 0;            // FLOP/s of dense GEMMs in bf16 by its specification. It is 0 if it is not known.
  double gemm_fp8 = 0;        // FLOP/s of GEMMs with FP8 operands. It is 0 if they are not faster.
  double gemm_fp8_block = 0;  // with scales of blocks
  std::vector<Link> links;

  // Ranks of `world` on one machine: of a GPU target those that the first link connects.
  int ranks_per_machine(int world) const;
  // Its ranks run on the machine that plans: their memory is that machine's.
  bool is_this_cpu() const { return !cuda && capacity == 0; }
  const ComputeRates& rates(DType dtype) const { return *by_float(dtype, &float32, &bf16); }
  // Whether its GEMMs can have FP8 operands. A CPU computes them, too, but no faster.
  bool has_fp8() const { return !cuda || !compute_capability || *compute_capability >= kFirstWithFp8; }
  // The link of a group whose members' ranks are in [first, last].
  const Link& link(int first, int last) const;
  // What of the rates that `world` ranks use was not measured: "the rate of links between machines". It
  // is "" if all were.
  std::string assumed_rates(int world) const;
  // Whether a group with ranks in [first, last] sends only the rows that a device counts, not their bound
  // (comm::Group::all_to_all_v): CPUs do, and GPUs of a machine, which the first link connects, that read each other's
  // memory.
  bool sends_counted_rows(int first, int last) const {
    return !cuda || (&link(first, last) == links.data() && links.front().peer_access);
  }
};

// Loads a shipped target by name, or a file of the same format by path. UserError: an unknown name, with the targets
// that it may mean as hint; a GPU without bf16 ("v100"); or all problems of the file.
Target load_target(const std::string& name_or_file);

std::vector<std::string> shipped_targets();
// The shipped target for a kind of device: "cpu"; that of this machine's GPU, else "h200".
std::string target_of(DeviceKind device);
// That of a GPU as CUDA names it: "rtx4090" of "NVIDIA GeForce RTX 4090"; "" if there is none.
std::string target_of_gpu(const std::string& name);

// Parses the text of a target; `file` names it in problems.
Target parse_target(const std::string& text, const std::string& file);

// precision.compute if it is set; otherwise bf16 on CUDA and float32 on the CPU.
DType compute_dtype(const PrecisionRecipe& precision, DeviceKind device);
DType compute_dtype(const PrecisionRecipe& precision, const Target& target);

// Rejects FP8 on a target that does not have it, and scales of blocks where no GEMM takes them.
void check_fp8(const Recipe& recipe, const Target& target, Problems& problems);
void check_fp8(const Recipe& recipe, ComputeCapability capability, const std::string& gpu, Problems& problems);

// The machine that plans, and that ranks run on if the target is this CPU or `ranks` is set.
struct Machine {
  int cores = 1;
  std::int64_t memory = 0;  // bytes available to processes: the machine's, or the limit of a control group
  int ranks = 0;            // ranks of the run on this machine. With 0 a CPU has all of them, another device none.
  bool bf16_units = false;  // its CPU multiplies bf16 in hardware (AVX512_BF16, AMX_BF16)
};
Machine this_machine();

// Name of this machine's CPU as the system gives it: "AMD EPYC 9B14"; "" if unknown.
std::string cpu_model();

// Bytes of this machine's memory that are available now, as reported by the system; at most what the limits of the
// process's control groups leave.
std::int64_t free_host_memory();

// Bytes that a rank may use: memory.capacity, else the target's capacity, else its share of the machine's memory.
std::int64_t capacity_of(const Recipe& recipe, const Target& target, const Machine& machine, int world);

// rate_scale of step_time() for a rank that computes with this many threads.
double rate_scale_of(const Target& target, int threads);

// Bytes of a rank of a pipeline stage outside its plan: the context, and a communicator for each of its groups of two
// or more.
std::int64_t overhead_of(const Target& target, const comm::MeshSizes& mesh, int stage);

}  // namespace hawser::plan
