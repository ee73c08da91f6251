#include "plan/target.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "config/config.h"
#include "config/yaml.h"
#include "io/bounded_file.h"
#include "io/files.h"
#include "plan/shipped_targets.h"

namespace hawser::plan {

namespace {

// Of a cuda target without the key `host`: PCIe 4.0 x16, 31.5 GB/s a direction by its specification, at 80%; latency as
// the launch of the shipped targets.
constexpr TargetHost kPcie4{.rate = 2.5e10, .latency = 3e-6};

// Reads a target's YAML; collects all problems.
class Reader {
 public:
  Reader(const YAML::Node& root, std::string file) : root_(root), file_(std::move(file)) {}

  Target read() {
    Target t;
    if (!root_.IsMap()) {
      add("not a target", "a map of keys, as in targets/h200.yaml", "", root_);
      problems_.throw_if_any();
    }
    check_keys(root_, "",
               {"name", "about", "device", "compute_capability", "never_run", "capacity", "context", "communicator",
                "per_core", "overlap", "launch", "copy", "host", "peak", "gemm", "attention", "links"});
    t.name = text(root_, "name");
    t.about = text(root_, "about");
    const std::string device = text(root_, "device");
    if (device != "cuda" && device != "cpu") add("unknown device", "cuda or cpu", device, root_["device"], "device");
    t.cuda = device == "cuda";
    if (root_["compute_capability"].IsDefined()) compute_capability(t);
    t.never_run = flag(root_, "", "never_run");
    if (text(root_, "capacity") != "machine") t.capacity = bytes(root_, "capacity");
    t.context = bytes(root_, "context");
    t.communicator = bytes(root_, "communicator");
    t.per_core = flag(root_, "", "per_core");
    t.overlap = flag(root_, "", "overlap", true);
    t.launch = number(root_, "", "launch");
    t.copy = rate(root_, "", "copy");
    if (root_["peak"].IsDefined()) t.peak = rate(root_, "", "peak");
    if (root_["host"].IsDefined()) {
      const YAML::Node host = map("host");
      check_keys(host, "host.", {"rate", "latency", "memory", "process", "assumed"});
      t.host = {.rate = rate(host, "host.", "rate"),
                .latency = number(host, "host.", "latency"),
                .assumed = flag(host, "host.", "assumed")};
      if (host["memory"].IsDefined()) t.host.memory = bytes(host, "memory");
      if (host["process"].IsDefined()) t.host.process = bytes(host, "process");
    } else if (t.cuda) {
      t.host = kPcie4;
    }
    for (const char* dtype : {"bf16", "float32"}) {
      ComputeRates& rates = std::string_view(dtype) == "bf16" ? t.bf16 : t.float32;
      rates.gemm = rate(map("gemm"), "gemm.", dtype);
      const YAML::Node attention = map("attention");
      const YAML::Node both = attention[dtype];
      const std::string prefix = std::string("attention.") + dtype + ".";
      rates.attention = {rate(both, prefix, "forward"), rate(both, prefix, "backward")};
    }
    for (const char* key : {"fp8", "fp8_block"}) {
      if (!t.has_fp8() && map("gemm")[key].IsDefined()) {
        add("a rate of FP8 on a GPU without FP8", cat("compute capability ", kFirstWithFp8.text(), " or later"),
            t.compute_capability->text(), map("gemm")[key], cat("gemm.", key));
      }
    }
    if (map("gemm")["fp8"].IsDefined()) t.gemm_fp8 = rate(map("gemm"), "gemm.", "fp8");
    t.gemm_fp8_block = map("gemm")["fp8_block"].IsDefined() ? rate(map("gemm"), "gemm.", "fp8_block") : t.gemm_fp8;
    links(t);
    problems_.throw_if_any();
    return t;
  }

 private:
  void add(const std::string& what, const std::string& expected, const std::string& got, const YAML::Node& node,
           const std::string& key = "", const std::string& hint = "") {
    std::string at = key;
    if (node.IsDefined() && node.Mark().line >= 0) at += cat(at.empty() ? "" : ", ", "line ", node.Mark().line + 1);
    problems_.add({.file = file_, .what = what, .expected = expected, .got = got, .at = at, .hint = hint});
  }

  void check_keys(const YAML::Node& node, const std::string& prefix, const std::vector<std::string>& known) {
    for (const auto& entry : node) {
      const auto key = entry.first.as<std::string>();
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        add("unknown key", "", "", entry.first, prefix + key, nearest(key, known));
      }
    }
  }

  YAML::Node map(const std::string& key) {
    const YAML::Node node = root_[key];
    if (node.IsDefined() && node.IsMap()) return node;
    return YAML::Node(YAML::NodeType::Map);
  }

  std::string text(const YAML::Node& node, const std::string& key) {
    const YAML::Node value = node[key];
    if (value.IsDefined() && value.IsScalar()) return value.as<std::string>();
    add("missing key", "", "", value, key);
    return "";
  }

  std::int64_t bytes(const YAML::Node& node, const std::string& key) {
    const YAML::Node value = node[key];
    const std::string given = value.IsDefined() && value.IsScalar() ? value.as<std::string>() : "";
    const auto parsed = parse_bytes(given);
    if (!parsed) add(given.empty() ? "missing key" : "not a size", "bytes: 80GB, 24GiB", given, value, key);
    return parsed ? parsed->value() : 0;
  }

  void compute_capability(Target& t) {
    const YAML::Node value = root_["compute_capability"];
    const std::string given = value.IsScalar() ? value.as<std::string>() : "";
    ComputeCapability of;
    char dot = 0;
    std::istringstream in(given);
    if (!t.cuda || !(in >> of.major >> dot >> of.minor) || dot != '.' || !in.eof()) {
      add("not a compute capability", t.cuda ? "as 9.0" : "none on a CPU", given, value, "compute_capability");
    } else if (of < kFirstWithBf16) {
      add(cat("compute capability ", given, " has no bf16 and is not supported"),
          cat(kFirstWithBf16.text(), " or later"), "", value, "compute_capability");
    } else {
      t.compute_capability = of;
    }
  }

  bool flag(const YAML::Node& node, const std::string& prefix, const std::string& key, bool otherwise = false) {
    const YAML::Node value = node[key];
    bool out = otherwise;
    if (value.IsDefined() && !YAML::convert<bool>::decode(value, out)) {
      add("not a boolean", "true or false", "", value, prefix + key);
    }
    return out;
  }

  double number(const YAML::Node& node, const std::string& prefix, const std::string& key) {
    const bool inside = node.IsDefined() && node.IsMap();
    const YAML::Node value = inside ? node[key] : YAML::Node(YAML::NodeType::Undefined);
    double out = 0;
    if (!value.IsDefined()) {
      add("missing key", "", "", value, prefix + key);
    } else if (!YAML::convert<double>::decode(value, out) || !(out >= 0)) {
      add("not a number", "0 or more", value.IsScalar() ? value.as<std::string>() : "", value, prefix + key);
    }
    return out;
  }

  double rate(const YAML::Node& node, const std::string& prefix, const std::string& key) {
    const std::size_t before = problems_.size();
    const double out = number(node, prefix, key);
    if (out <= 0 && problems_.size() == before) add("not a rate", "more than 0", "0", node[key], prefix + key);
    return out;
  }

  void links(Target& t) {
    const YAML::Node list = root_["links"];
    if (!list.IsDefined() || !list.IsSequence() || list.size() == 0) {
      return add("missing key", "a list of links", "", list, "links");
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string prefix = "links[" + std::to_string(i) + "].";
      if (list[i].IsMap()) check_keys(list[i], prefix, {"ranks", "rate", "latency", "peer_access", "assumed"});
      t.links.push_back({.ranks = static_cast<int>(number(list[i], prefix, "ranks")),
                         .rate = rate(list[i], prefix, "rate"),
                         .latency = number(list[i], prefix, "latency"),
                         .assumed = list[i].IsMap() && flag(list[i], prefix, "assumed"),
                         .peer_access = !list[i].IsMap() || flag(list[i], prefix, "peer_access", true)});
    }
    if (t.links.back().ranks != 0) add("the last link must allow any number of ranks", "0", "", list, "links.ranks");
  }

  YAML::Node root_;
  std::string file_;
  Problems problems_;
};

}  // namespace

std::string ComputeCapability::text() const {
  return cat(major, ".", minor);
}

const Link& Target::link(int first, int last) const {
  for (const Link& link : links) {
    if (link.ranks == 0 || first / link.ranks == last / link.ranks) return link;
  }
  return links.back();
}

std::string Target::assumed_rates(int world) const {
  std::string out;
  const auto append = [&](const char* what) { out += (out.empty() ? "the rate of " : " and of ") + std::string(what); };
  for (std::size_t i = 0; i < links.size() && world > 1; ++i) {
    const bool used = i == 0 || world > links[i - 1].ranks;
    if (used && links[i].assumed) append(i == 0 && links.size() > 1 ? "links in a machine" : "links between machines");
  }
  if (cuda && host.assumed) append("the link to host memory");
  return out;
}

int Target::ranks_per_machine(int world) const {
  return !cuda || links.empty() || links.front().ranks == 0 ? world : std::min(world, links.front().ranks);
}

Target parse_target(const std::string& text, const std::string& file) {
  YAML::Node root;
  try {
    root = read_yaml(text);
  } catch (const YAML::Exception& error) {
    throw UserError(
        Problem{.file = file, .what = "broken YAML: " + error.msg, .at = cat("line ", error.mark.line + 1)});
  }
  return Reader(root, file).read();
}

std::vector<std::string> shipped_targets() {
  std::vector<std::string> names;
  for (const auto& [name, text] : shipped_target_texts()) names.emplace_back(name);
  return names;
}

std::string target_of_gpu(const std::string& name) {
  struct Entry {
    const char *word, *other_word, *target;
  };
  // The first entry counts whose words are both in the name.
  constexpr Entry kEntries[] = {{"A100", "80GB", "a100-80gb"}, {"A100", "", "a100-40gb"},
                                {"H100", "PCIe", "h100-pcie"}, {"H100", "", "h100"},
                                {"H200", "", "h200"},          {"L40S", "", "l40s"},
                                {"RTX 3090", "", "rtx3090"},   {"RTX 4090", "", "rtx4090"},
                                {"RTX 5090", "", "rtx5090"},   {"B200", "", "b200"}};
  for (const auto& [word, other_word, target] : kEntries) {
    if (name.find(word) != std::string::npos && name.find(other_word) != std::string::npos) return target;
  }
  return "";
}

std::string target_of(DeviceKind device) {
  if (device != DeviceKind::cuda) return "cpu";
  const std::string own = target_of_gpu(cuda_info().name);
  return own.empty() ? "h200" : own;
}

namespace {

// Small letters and digits alone: "rtx4090" of "RTX 4090".
std::string letters_of(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) out += static_cast<char>(std::tolower(byte));
  }
  return out;
}

// The shipped targets that a wrong name may mean, as a hint: "--target a100-40gb or a100-80gb" of "A100".
std::string target_hint(const std::string& name) {
  constexpr std::size_t kFewest = 3;  // letters and digits of a part that says something
  const std::string given = letters_of(name);
  std::vector<std::string> meant;
  for (const std::string& shipped : shipped_targets()) {
    const std::string letters = letters_of(shipped);
    if (given == letters) return "--target " + shipped;
    if (given.size() >= kFewest && letters.find(given) != std::string::npos) meant.push_back(shipped);
  }
  if (meant.empty()) meant = {nearest(name, shipped_targets())};
  return meant.front().empty() ? "" : "--target " + joined(meant, " or ");
}

[[noreturn]] void reject_target(const std::string& name) {
  // GPUs that users name and no version will support.
  for (const auto& [gpu, capability] : {std::pair("v100", "7.0"), {"t4", "7.5"}}) {
    if (letters_of(name) != gpu) continue;
    throw UserError(Problem{.what = cat("compute capability ", capability, " has no bf16 and is not supported"),
                            .expected = joined(shipped_targets(), ", "),
                            .got = name,
                            .at = "--target"});
  }
  throw UserError(Problem{.what = "unknown target",
                          .expected = cat(joined(shipped_targets(), ", "), ", or a file like targets/h200.yaml"),
                          .got = name,
                          .at = "--target",
                          .hint = target_hint(name)});
}

}  // namespace

Target load_target(const std::string& name_or_file) {
  for (const auto& [name, text] : shipped_target_texts()) {
    if (name == name_or_file) return parse_target(std::string(text), cat("targets/", name, ".yaml"));
  }
  if (!io::is_file(name_or_file)) reject_target(name_or_file);
  constexpr std::int64_t kLargest = std::int64_t{1} << 20;
  return parse_target(io::read_bounded(name_or_file, kLargest), name_or_file);
}

void check_fp8(const Recipe& recipe, const Target& target, Problems& problems) {
  if (target.cuda && target.compute_capability) check_fp8(recipe, *target.compute_capability, target.name, problems);
}

void check_fp8(const Recipe& recipe, ComputeCapability capability, const std::string& gpu, Problems& problems) {
  const bool computes = recipe.precision.compute == ComputePrecision::fp8;
  if (capability >= kFirstWithFp8) {
    if (!computes || recipe.precision.fp8.scaling != Fp8Scaling::block || capability == kWithBlockScales) return;
    Problem problem = problem_at(recipe, "precision.fp8.scaling");
    problem.what = cat("compute capability ", capability.text(), " has no FP8 GEMMs with scales of blocks; ",
                       kWithBlockScales.text(), " has");
    problem.expected = "delayed or current";
    problem.got = cat("block for ", gpu);
    problem.hint = "precision.fp8.scaling: delayed";
    return problems.add(std::move(problem));
  }
  const char* const key = computes ? "precision.compute" : "adapter.base";
  if (!computes && recipe.adapter.base != AdapterBase::fp8) return;
  Problem problem = problem_at(recipe, key);
  problem.what = cat("compute capability ", capability.text(), " has no FP8; ", kFirstWithFp8.text(), " and later do");
  problem.expected = computes ? "auto, float32 or bf16" : "auto, bf16 or nf4";
  problem.got = cat("fp8 for ", gpu);
  const bool adapted = recipe.adapter.kind != AdapterKind::none;
  problem.hint = cat(computes ? "precision.compute: bf16" : "", computes && adapted ? ", with " : "",
                     adapted || !computes ? "adapter.base: nf4" : "", computes && adapted ? " to save memory" : "");
  problems.add(std::move(problem));
}

DType compute_dtype(const PrecisionRecipe& precision, DeviceKind device) {
  switch (precision.compute) {
    case ComputePrecision::bf16:
      return DType::bf16;
    case ComputePrecision::float32:
      return DType::f32;
    case ComputePrecision::automatic:
    case ComputePrecision::fp8:
      break;
  }
  return device == DeviceKind::cuda ? DType::bf16 : DType::f32;
}

DType compute_dtype(const PrecisionRecipe& precision, const Target& target) {
  return compute_dtype(precision, target.cuda ? DeviceKind::cuda : DeviceKind::cpu);
}

namespace {

namespace fs = std::filesystem;

std::int64_t bytes_in(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t bytes = 0;
  return in >> bytes ? bytes : 0;  // "max" is no number
}

// Bytes of the page cache that the system frees on demand, which are counted as used.
std::int64_t reclaimable(const fs::path& group, const std::string& key) {
  std::ifstream in(group / "memory.stat");
  std::int64_t bytes = 0;
  for (std::string name; in >> name >> bytes;) {
    if (name == key) return bytes;
  }
  return 0;
}

// Minima over this process's control group and its ancestors (cgroup v2, or v1's corresponding files).
struct ControlGroups {
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  std::int64_t free = std::numeric_limits<std::int64_t>::max();  // of each limit what its group does not use
};

ControlGroups control_groups() {
  ControlGroups out;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const bool unified = line.starts_with("0::");
    if (!unified && line.find(":memory:") == std::string::npos) continue;
    const auto look = [&](const fs::path& group) {
      const std::int64_t limit = bytes_in(group / (unified ? "memory.max" : "memory.limit_in_bytes"));
      if (limit <= 0) return;
      const std::int64_t used = bytes_in(group / (unified ? "memory.current" : "memory.usage_in_bytes")) -
                                reclaimable(group, unified ? "inactive_file" : "total_inactive_file");
      out.limit = std::min(out.limit, limit);
      out.free = std::min(out.free, std::max<std::int64_t>(0, limit - std::max<std::int64_t>(0, used)));
    };
    const fs::path root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    fs::path group = fs::path(line.substr(line.rfind(':') + 1)).relative_path();
    for (; !group.empty(); group = group.parent_path()) look(root / group);
    look(root);  // in a container the process's own group is the root
  }
  return out;
}

}  // namespace

Machine this_machine() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const std::int64_t all = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  Machine machine{.cores = std::max(1, cores), .memory = std::min(all, control_groups().limit)};
#if defined(__x86_64__)
  machine.bf16_units = __builtin_cpu_supports("avx512bf16");  // every CPU with AMX has it, too
#endif
  return machine;
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::int64_t free_host_memory() {
  std::int64_t free = std::min(this_machine().memory, control_groups().free);
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view kName = "MemAvailable:";
    if (line.starts_with(kName)) free = std::min<std::int64_t>(free, std::stoll(line.substr(kName.size())) << 10);
  }
  return free;
}

std::int64_t capacity_of(const Recipe& recipe, const Target& target, const Machine& machine, int world) {
  if (recipe.memory.capacity) return recipe.memory.capacity->value();
  return target.capacity > 0 ? target.capacity : machine.memory / (machine.ranks > 0 ? machine.ranks : world);
}

double rate_scale_of(const Target& target, int threads) {
  return target.per_core ? threads : 1.0;
}

namespace {

// Of a rank of the stage: loss, model, two at each of its edges, and those of tied parameters.
int pipeline_groups(const comm::MeshSizes& mesh, int stage) {
  if (mesh.pipeline == 1) return 0;
  int groups = 2;
  for (int edge = 0; edge < mesh.edges(); ++edge) {
    if (edge == stage || (edge + 1) % mesh.pipeline == stage) groups += 2;
  }
  for (const std::vector<int>& stages : mesh.tied) groups += static_cast<int>(std::ranges::count(stages, stage));
  return groups;
}

}  // namespace

std::int64_t overhead_of(const Target& target, const comm::MeshSizes& mesh, int stage) {
  // As comm::Mesh creates them: context and its heads, replicate, tensor, expert, its nodes, shard twice for its
  // traffic, and one for scalar sums of each of shard, data and world, counted once if their ranks are the same; three
  // each for the shards of what is copied on tensor ranks, and of experts; those of pipeline stages.
  int groups = 0;
  if (mesh.context > mesh.context_heads) ++groups;
  if (mesh.context_heads > 1) ++groups;
  if (mesh.shard_ranks() > 1) groups += 3;
  if (mesh.replicas() > 1) ++groups;
  const int data = mesh.context * mesh.shard * mesh.replicate;
  if (data > mesh.shard_ranks()) ++groups;
  if (mesh.world() > data) ++groups;
  if (mesh.tensor > 1) groups += 1 + 3;
  if (mesh.expert > 1) groups += mesh.shard_ranks(Domain::expert) > 1 ? 1 + 3 : 1;
  if (mesh.expert > 1 && mesh.pipeline > 1) ++groups;
  groups += pipeline_groups(mesh, stage);
  return target.context + groups * target.communicator;
}

}  // namespace hawser::plan
