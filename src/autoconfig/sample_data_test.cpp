#include "autoconfig/sample_data.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/cat.h"
#include "base/testing/temporary_folder.h"

namespace hawser::autoconfig {
namespace sample_data_test {

// A line of that many ids, each with one digit.
std::string line_of(int ids) {
  std::string line = "{\"input_ids\": [5";
  for (int i = 1; i < ids; ++i) line += ", 5";
  return line + "]}\n";
}

// Files are often sorted: by date, language or length. The first half here has other documents than the second.
TEST(SampleData, OfManyFilesIsSpreadOverAll) {
  const TemporaryFolder folder;
  Recipe recipe;
  recipe.folder = folder.path();
  for (int file = 10; file < 42; ++file) {
    const std::string name = cat("part-", file, ".jsonl");
    folder.write(name, line_of(file < 26 ? 5 : 50));
    recipe.data.train.push_back(name);
  }
  const DataSample sample = sample_data(recipe, 96);
  ASSERT_EQ(sample.lengths.size(), 16u) << "files";
  EXPECT_EQ(std::ranges::count(sample.lengths, 5), 8);
  EXPECT_EQ(std::ranges::count(sample.lengths, 50), 8);
  EXPECT_FALSE(sample.all);
  EXPECT_NEAR(sample.documents, 32, 1e-9);
  EXPECT_NEAR(sample.tokens, 16 * 5 + 16 * 50, 1e-9);
}

}  // namespace sample_data_test
}  // namespace hawser::autoconfig
