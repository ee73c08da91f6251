// What makes the numbers of an evaluation wrong is an error, whatever is computed: token files that another process
// changes while they are read, and weights that are not finite.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "evaluate/evaluate.h"
#include "prepare/token_file.h"

namespace hawser::evaluate {
namespace guards_test {

namespace fs = std::filesystem;

class Guards : public ::testing::Test {
 protected:
  Guards() {
    for (const char* name : {"data", "train"}) {
      prepare::TokenFileWriter writer(folder_.path(name), 96);
      writer.add_sequence(std::vector<std::int32_t>{5, 6, 7, 8, 9, 10, 11, 12});
      writer.finish();
    }
  }

  // The error of an evaluation during which `file` gets other ids, in place; "" if there is none.
  std::string error_of(const EvaluateRequest& request, const std::string& file) {
    Problems problems;
    auto input = open_evaluation(request, 0, 1, problems);
    HAWSER_CHECK(input.has_value(), problems.lines());
    if (!file.empty()) {
      const std::string path = folder_.path(file);
      const auto time = fs::last_write_time(path);
      std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(0).put('\x06');
      fs::last_write_time(path, time + std::chrono::seconds(1));
    }
    try {
      evaluate(*input, nullptr);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  }

  EvaluateRequest request(bool gradient_norms, const std::string& bigram = "") const {
    return {.model = model_,
            .data = folder_.path("data"),
            .bigram = bigram.empty() ? "" : folder_.path(bigram),
            .sequence_length = 16,
            .gradient_norms = gradient_norms};
  }

  TemporaryFolder folder_;
  std::string model_ = (fs::path(testing::kSourceFolder) / "tests/golden/tiny/gqa").string();
};

TEST_F(Guards, DataThatChangeWhileTheyAreReadAreAnError) {
  const auto changed = [&](const char* file) {
    return folder_.path(file) + ": the file has changed while it was read";
  };
  for (const bool gradient_norms : {false, true}) {
    EXPECT_EQ(error_of(request(gradient_norms), ""), "");
    EXPECT_EQ(error_of(request(gradient_norms), "data.bin").find(changed("data.bin")), 0u) << gradient_norms;
    EXPECT_EQ(error_of(request(gradient_norms), "train.bin"), "") << "it is not read";
  }
  EXPECT_EQ(error_of(request(false, "train"), ""), "");
  EXPECT_EQ(error_of(request(false, "train"), "train.bin").find(changed("train.bin")), 0u) << "of the bigram model";
}

TEST_F(Guards, ALossThatIsNotFiniteIsAnError) {
  fs::copy(model_, folder_.path("model"));
  model_ = folder_.path("model");
  const std::string weights = folder_.path("model/model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::fstream(weights, std::ios::binary | std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(fs::file_size(weights) - sizeof nan))
      .write(reinterpret_cast<const char*>(&nan), sizeof nan);
  for (const bool gradient_norms : {false, true}) {
    EXPECT_NE(error_of(request(gradient_norms), "").find("not finite"), std::string::npos) << gradient_norms;
  }
}

}  // namespace guards_test
}  // namespace hawser::evaluate
