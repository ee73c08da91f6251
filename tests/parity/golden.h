// Golden files made by Hugging Face transformers (tests/golden/README.md), and random projections of gradients to
// compare with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/philox.h"
#include "base/testing/test_paths.h"
#include "engine/host_copy.h"
#include "evaluate/evaluate.h"
#include "models/weights.h"
#include "nn/segment_ranges.h"

namespace hawser::testing {

constexpr std::size_t kProjections = 64;

// Adds sign * value for elements [first, first + count) of the tensor `name` to its 64 projections. Eight signs form a
// number from 0 to 255: values are first summed by that number, and the 8 x 256 sums get their signs at the end.
inline void project_part(const std::string& name, std::int64_t first, const float* values, std::int64_t count,
                         std::vector<double>& projections) {
  const std::uint64_t key = fnv1a(name);
  const PhiloxKey words{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
  std::vector<double> sums(8 * 256);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<std::uint64_t>(first + i);
    const PhiloxWords w =
        philox({static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32), 0, 0}, words);
    const std::uint64_t bits = w[0] | (std::uint64_t{w[1]} << 32);
    for (std::size_t byte = 0; byte < 8; ++byte) sums[byte * 256 + (bits >> (8 * byte) & 255)] += values[i];
  }
  for (std::size_t k = 0; k < kProjections; ++k) {
    for (std::size_t value = 0; value < 256; ++value) {
      const double sum = sums[k / 8 * 256 + value];
      projections[k] += (value >> k % 8 & 1) != 0 ? sum : -sum;
    }
  }
}

// As project_part, with large pieces on all cores.
inline void project(const std::string& name, std::int64_t first, const float* values, std::int64_t count,
                    std::vector<double>& projections) {
  constexpr std::int64_t kMin = std::int64_t{1} << 18;  // min elements per thread
  const std::int64_t threads =
      std::clamp<std::int64_t>(count / kMin, 1, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::vector<double>> parts(static_cast<std::size_t>(threads), std::vector<double>(kProjections));
  std::vector<std::thread> workers;
  for (std::int64_t t = 0; t < threads; ++t) {
    const std::int64_t begin = count * t / threads, end = count * (t + 1) / threads;
    auto& part = parts[static_cast<std::size_t>(t)];
    workers.emplace_back([&, begin, end] { project_part(name, first + begin, values + begin, end - begin, part); });
  }
  for (std::thread& worker : workers) worker.join();
  for (const auto& part : parts) {
    for (std::size_t k = 0; k < kProjections; ++k) projections[k] += part[k];
  }
}

// As project, for a piece of a segment in the model's form, with its elements' numbers in the file's. `name`: the
// tensor's in the file. `values`: those of the shard.
inline void project_piece(const std::string& name, const nn::Segment& segment, const nn::SegmentRange& piece,
                          const float* values, std::vector<double>& projections) {
  HAWSER_CHECK(!segment.file.transposed, name, ": projections of a transposed tensor");
  const Shape& global = segment.global;
  const std::int64_t length = global.elements() / global[0];
  std::vector<std::int64_t> in_file;  // by row of the model
  if (!segment.file.row_order.empty()) in_file.resize(static_cast<std::size_t>(global[0]));
  std::int64_t next = 0;
  for (const IndexRange& run : segment.file.row_order) {
    for (std::int64_t row = run.begin; row < run.end(); ++row) in_file[static_cast<std::size_t>(row)] = next++;
  }
  nn::for_each_global_run(segment, piece, [&](std::int64_t first, std::int64_t at, std::int64_t count) {
    if (in_file.empty()) return project(name, first, values + at, count, projections);
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t row = (first + done) / length, column = (first + done) % length;
      const std::int64_t here = std::min(length - column, count - done);
      project_part(name, in_file[static_cast<std::size_t>(row)] * length + column, values + at + done, here,
                   projections);
      done += here;
    }
  });
}

// This rank's part of the projections of every trainable parameter's gradient; the sum over ranks that hold different
// pieces is the full projection. `file_name`: a tensor's name in the file, of that in the model.
inline std::map<std::string, std::vector<double>> gradient_projections(
    engine::Session& session, step::Purpose purpose,
    const std::function<std::string(const std::string&)>& file_name = [](const std::string& name) { return name; }) {
  std::map<std::string, std::vector<double>> out;
  for (int f = 0; f < static_cast<int>(session.model().flats().size()); ++f) {
    const nn::Flat& flat = session.model().flat(f);
    if (!flat.spec().trainable) continue;
    const step::FlatState& state = session.state().flat(f);
    const std::vector<float> shard = engine::values_of(session, session.executor(purpose).gradient_shard(f));
    for (const nn::SegmentRange& piece : nn::segment_ranges(flat, state.begin, state.count)) {
      const nn::Segment& segment = nn::segment_of(flat, piece);
      const std::string name = file_name(segment.name);
      auto& projections = out.try_emplace(name, std::vector<double>(kProjections)).first->second;
      project_piece(name, segment, piece, shard.data(), projections);
    }
  }
  return out;
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// The folders of tests/golden/SET, sorted: "tiny/gqa".
inline std::vector<std::string> golden_cases(const std::string& set) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(testing::kSourceFolder) / "tests/golden" / set)) {
    if (entry.is_directory()) names.push_back(set + "/" + entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Estimates ||g - g0|| from projections: the root of their mean squared difference.
inline double projected_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += (a[k] - b[k]) * (a[k] - b[k]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

inline double norm(const std::vector<double>& projections) {
  return projected_distance(projections, std::vector<double>(projections.size()));
}

}  // namespace hawser::testing
