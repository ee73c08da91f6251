// Shared helpers of this module's tests: states in host memory, child processes.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "checkpoint/save.h"

namespace hawser::checkpoint::testing {

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  ASSERT_TRUE(out.good()) << path;
}

// Lines of the UserError that `work` throws; "" if it throws none.
template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// Expects one line that contains `part`.
inline void expect_line(const std::string& line, const std::string& part) {
  EXPECT_NE(line.find(part), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
}

struct Spec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
};

// Element i of a test tensor depends only on its name, a version and i.
inline void fill(const Spec& spec, std::uint64_t version, const Region& region, std::byte* out) {
  const RandomStream random(version, spec.name);
  for_each_run(spec.shape, region, [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(random.uniform(static_cast<std::uint64_t>(begin + i)) - 0.5);
      if (spec.dtype == DType::bf16) {
        const Bf16 rounded(value);
        std::memcpy(out, &rounded, sizeof(rounded));
      } else {
        std::memcpy(out, &value, sizeof(value));
      }
      out += size_of(spec.dtype);
    }
  });
}

// States that own their memory.
class Host {
 public:
  std::vector<NamedState> states;

  // Adds the boxes to the state of this name, created if missing; with `version`, filled with its values.
  void add(const Spec& spec, const std::vector<Region>& regions, std::uint64_t version = 0) {
    NamedState& state = state_of(spec);
    for (const Region& region : regions) {
      auto& memory = memory_.emplace_back(static_cast<std::size_t>(region.elements() * size_of(spec.dtype)) + 1);
      state.boxes.push_back(
          {region.offset, region.extent, TensorView(memory.data(), spec.dtype, region.extent, DeviceKind::cpu)});
      if (version > 0) fill(spec, version, region, memory.data());
    }
  }
  // Range [begin, end) of the flat tensor, as boxes over one buffer.
  void add_range(const Spec& spec, std::int64_t begin, std::int64_t end, std::uint64_t version = 0) {
    auto& memory = memory_.emplace_back(static_cast<std::size_t>((end - begin) * size_of(spec.dtype)) + 1);
    const TensorView flat(memory.data(), spec.dtype, {end - begin}, DeviceKind::cpu);
    NamedState& state = state_of(spec);
    for (Box& box : boxes_of_range(spec.shape, begin, end - begin, flat)) {
      if (version > 0) fill(spec, version, region_of(box), box.view.raw());
      state.boxes.push_back(box);
    }
  }
  // Whether every box holds the values of `version`.
  bool holds(std::uint64_t version) const {
    for (const NamedState& state : states) {
      for (const Box& box : state.boxes) {
        std::vector<std::byte> expected(static_cast<std::size_t>(box.view.bytes()) + 1);
        fill({state.name, state.shape, state.dtype}, version, region_of(box), expected.data());
        if (std::memcmp(expected.data(), box.view.raw(), static_cast<std::size_t>(box.view.bytes())) != 0) return false;
      }
    }
    return true;
  }

 private:
  NamedState& state_of(const Spec& spec) {
    for (NamedState& state : states) {
      if (state.name == spec.name) return state;
    }
    states.push_back({spec.name, spec.shape, spec.dtype, {}});
    return states.back();
  }
  std::list<std::vector<std::byte>> memory_;
};

// Saves the ranks' states one after another, as their processes would.
inline std::string save(const SaveOptions& options, const std::vector<Host>& ranks,
                        const std::string& metadata = R"({"position": 7})") {
  SaveOptions all = options;
  all.world = static_cast<int>(ranks.size());
  SaveSession first = SaveSession::begin(all);
  std::vector<std::string> parts;
  for (int rank = 0; rank < all.world; ++rank) {
    const auto& states = ranks[static_cast<std::size_t>(rank)].states;
    parts.push_back(rank == 0 ? first.write(states) : SaveSession::join(all, first.ticket(), rank).write(states));
  }
  return first.commit(parts, metadata);
}

// The flat tensors split evenly over `world` ranks.
inline std::vector<Host> cut_flat(const std::vector<Spec>& specs, int world, std::uint64_t version = 0) {
  std::vector<Host> ranks(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    for (const Spec& spec : specs) {
      const std::int64_t n = spec.shape.elements();
      ranks[static_cast<std::size_t>(rank)].add_range(spec, n * rank / world, n * (rank + 1) / world, version);
    }
  }
  return ranks;
}

// A child process that runs `work` and exits without destructors, like a killed one.
inline pid_t start_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  return child;
}

inline int wait_child(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace hawser::checkpoint::testing
