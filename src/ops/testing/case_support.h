// `check_case` and helpers for the case tables of the ops (tests only).
//
// A case is a lambda that creates its tensors in a World, runs the op and returns its outputs. check_case runs it:
// - on the CPU at every vector level, once with one thread and twice with two. Outputs must match the expected values,
//   all runs of one level must agree bit for bit, and gaps between padded rows must not change;
// - on the meta device, where it must record one op that reads exactly the inputs and writes exactly the outputs;
// - on a GPU if there is one, twice. Both runs must agree bit for bit, match the expected values within the case's
//   tolerance and the CPU's within twice that, and write nothing between or after the tensors.
// HAWSER_CASES=cuda in the environment omits all CPU runs but one, and fails without a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "base/build.h"
#include "ops/cpu/levels.h"
#include "ops/testing/case_world.h"

namespace hawser::ops::testing {

// Checks |got - expected| <= tolerance * (|expected| + root mean square of expected) + of_terms for each element;
// infinities must be equal. 0.05 is added to the root mean square: inputs are of order one, and sums that cancel to
// zero keep their rounding errors. of_terms: what rounding the terms of each element's sum may add; empty for nothing.
inline void expect_close(const Values& got, const Values& expected, double tolerance, const std::string& what,
                         const Values& of_terms = {}) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double squares = 0, finite = 1e-30;
  for (const double e : expected) {
    if (std::isfinite(e)) squares += e * e, finite += 1;
  }
  const double typical = std::sqrt(squares / finite) + 0.05;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    const double allowed = tolerance * (std::abs(expected[i]) + typical) + (of_terms.empty() ? 0 : of_terms[i]);
    ASSERT_LE(std::abs(got[i] - expected[i]), allowed)
        << what << ": element " << i << " is " << got[i] << ", expected " << expected[i];
  }
}

inline void expect_same_bits(const Values& got, const Values& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(double)), 0)
        << what << ": element " << i << " is " << got[i] << ", before " << expected[i];
  }
}

struct Case {
  std::string name;
  std::function<std::vector<Values>(World&)> run;
  std::vector<Values> expected;
  double tolerance = 2e-6;
  // For each output, the sum of the magnitudes of each element's terms, if GPU kernels round them to bf16 before they
  // add them (as the probabilities of attention on tensor cores); empty for outputs and cases without.
  std::vector<Values> rounded_terms = {};
};

// Printed at the end by a build with the cuda device: the number of cases that ran there, or why none did.
class CudaReport : public ::testing::Environment {
 public:
  void TearDown() override {
    if (!build().cuda) return;
    if (gpu() != nullptr) {
      std::cout << "cuda cases: " << gpu()->cases << " ran on " << cuda_info().name << '\n';
      for (const std::string& name : gpu()->without)
        std::cout << "cuda cases: NOT RUN, no CUDA backend: " << name << '\n';
    } else {
      std::cout << "cuda cases: NOT RUN: " << cuda_info().problem << '\n';
      if (only_cuda()) ADD_FAILURE() << "HAWSER_CASES=cuda, but there is no GPU";
    }
  }
};
inline ::testing::Environment* const kCudaReport = ::testing::AddGlobalTestEnvironment(new CudaReport);

inline void check_values(const Case& c, const std::vector<Values>& got, const std::vector<Values>& expected,
                         double tolerance, const std::string& where, const std::vector<Values>& of_terms = {}) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    expect_close(got[i], expected[i], tolerance, cat(c.name, ", output ", i, ", ", where),
                 i < of_terms.size() ? of_terms[i] : Values{});
  }
}

inline void check_on_cuda(const Case& c) {
  if (gpu() == nullptr) return;
  World cpu(DeviceKind::cpu, 2);
  const std::vector<Values> reference = c.run(cpu);
  std::vector<Values> of_terms = c.rounded_terms;
  for (Values& output : of_terms) {
    for (double& magnitude : output) magnitude *= 1.0 / 256;  // the largest relative error of a rounding to bf16
  }
  std::vector<Values> first;
  for (int turn = 0; turn < 2; ++turn) {
    World world(DeviceKind::cuda, 1);
    std::vector<Values> got;
    try {
      got = c.run(world);
    } catch (const InternalError& error) {
      if (std::string(error.what()).find("no backend for cuda") == std::string::npos) throw;
      gpu()->without.insert(c.name);
      return;
    }
    gpu()->cases += turn;
    world.check_gaps();
    check_values(c, got, c.expected, c.tolerance, "cuda", of_terms);
    check_values(c, got, reference, 2 * c.tolerance, "cuda against the CPU", of_terms);
    if (first.empty()) first = got;
    for (std::size_t i = 0; i < got.size(); ++i)
      expect_same_bits(got[i], first[i], cat("output ", i, ", cuda, second run"));
  }
}

inline void check_case(const Case& c) {
  SCOPED_TRACE(c.name);
  check_on_cuda(c);
  if (only_cuda()) return;
  const VectorLevel best = best_vector_level();
  for (const VectorLevel level : {VectorLevel::baseline, VectorLevel::avx2, VectorLevel::avx512}) {
    if (level > best) continue;
    set_vector_level(level);
    std::vector<Values> first;
    for (const int threads : {1, 2, 2}) {
      World world(DeviceKind::cpu, threads);
      const std::vector<Values> got = c.run(world);
      world.check_gaps();
      check_values(c, got, c.expected, c.tolerance, cat("level ", static_cast<int>(level), ", ", threads, " threads"));
      if (first.empty()) first = got;
      for (std::size_t i = 0; i < got.size(); ++i) {
        expect_same_bits(got[i], first[i], cat("output ", i, ", level ", static_cast<int>(level), ", second run"));
      }
    }
  }
  set_vector_level(best);
  World world(DeviceKind::meta, 1);
  c.run(world);
  world.check_record();
}

// d loss / d x by central differences of a float64 function that reads x.
inline Values numeric_gradient(const std::function<double()>& loss, Values& x, double step = 1e-5) {
  Values out;
  for (double& value : x) {
    const double keep = value;
    value = keep + step;
    const double up = loss();
    value = keep - step;
    const double down = loss();
    value = keep;
    out.push_back((up - down) / (2 * step));
  }
  return out;
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Values plus(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// The call must throw an InternalError whose message contains `part`.
inline void expect_rejected(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "not rejected: " << part;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// bf16 has 8 significant bits: half a unit in the last place, with a margin for sums.
constexpr double kBf16Tolerance = 6e-3;

}  // namespace hawser::ops::testing
