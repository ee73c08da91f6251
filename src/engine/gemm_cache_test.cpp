#include "engine/gemm_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "base/testing/temporary_folder.h"
#include "io/files.h"

namespace hawser::engine {
namespace gemm_cache_test {

const std::string kHeading = "cublasLt 130100 on NVIDIA H200";

std::string choices(const std::string& lines) {
  return kHeading + "\n" + lines;
}

TEST(GemmCache, KeepsWhatWasMeasuredForEachGpuAndLibrary) {
  const TemporaryFolder folder;
  const GemmCache cache(folder.path() + "/new/gemm");
  EXPECT_EQ(cache.read(kHeading), "");
  cache.add(choices("1 2 3 a\n"), choices("1 2 3 a\n4 5 6 b\n# 7 x 8 x 9: fallback kernel (slow)\n"));
  EXPECT_EQ(cache.read(kHeading), choices("4 5 6 b\n"));  // neither the stored one nor the note
  cache.add(choices("4 5 6 b\n"), choices("4 5 6 b\n7 7 7 c\n"));
  EXPECT_EQ(cache.read(kHeading), choices("7 7 7 c\n4 5 6 b\n"));
  EXPECT_EQ(cache.read("cublasLt 130100 on NVIDIA H100"), "");
  EXPECT_EQ(cache.read("cublasLt 130200 on NVIDIA H200"), "");
}

TEST(GemmCache, WritesNothingIfNothingWasMeasured) {
  const TemporaryFolder folder;
  const GemmCache cache(folder.path() + "/gemm");
  cache.add(choices("1 2 3 a\n"), choices("1 2 3 a\n# note\n"));
  EXPECT_FALSE(io::exists(folder.path() + "/gemm"));
}

TEST(GemmCache, ABrokenCacheIsAnEmptyOne) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/cublasLt_130100_on_NVIDIA_H200.txt";
  const GemmCache cache(folder.path());
  io::write_text_atomically(path, "something else\n1 2 3 a\n");
  EXPECT_EQ(cache.read(kHeading), "");
  cache.add(choices(""), choices("1 2 3 a\n"));
  EXPECT_EQ(cache.read(kHeading), choices("1 2 3 a\n"));

  io::write_text_atomically(folder.path() + "/file", "");
  const GemmCache below_a_file(folder.path() + "/file");
  EXPECT_EQ(below_a_file.read(kHeading), "");
  below_a_file.add(choices(""), choices("1 2 3 a\n"));  // and no error

  const GemmCache none("");
  none.add(choices(""), choices("1 2 3 a\n"));
  EXPECT_EQ(none.read(kHeading), "");
}

TEST(GemmCache, IsInTheUsersCacheFolder) {
  const char* const before = std::getenv("XDG_CACHE_HOME");
  const std::optional<std::string> kept = before != nullptr ? std::optional<std::string>(before) : std::nullopt;
  ::setenv("XDG_CACHE_HOME", "/scratch/cache", 1);
  EXPECT_EQ(GemmCache::default_folder(), "/scratch/cache/hawser/gemm_algorithms");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_TRUE(GemmCache::default_folder().ends_with("/.cache/hawser/gemm_algorithms")) << GemmCache::default_folder();
  if (kept) ::setenv("XDG_CACHE_HOME", kept->c_str(), 1);
}

}  // namespace gemm_cache_test
}  // namespace hawser::engine
