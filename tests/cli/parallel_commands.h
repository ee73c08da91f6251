// What the tests of parallelisms share: a recipe of a tiny model and forty documents, and the commands of its run.
#pragma once

#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser::testing {

class ParallelCommands : public Binary {
 protected:
  // `more`: further sections, a line each.
  void write_recipe(int batch, const std::string& parallel, const std::string& more = "") {
    write("text.jsonl", forty_documents());
    write("recipe.yaml", "model: {config: " + config_ +
                             "}\n"
                             "data: {train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}\n"
                             "train: {steps: 4, global_batch_size: " +
                             std::to_string(batch) + "}\nparallel: {" + parallel + "}\n" + more +
                             "checkpoint: {every_steps: 2}\n"
                             "output: run\n");
  }
  // What a run on two ranks prints.
  std::string fit(const std::string& options) {
    const Ran ran = hawser("fit recipe.yaml --ranks 2 " + options);
    EXPECT_EQ(ran.code, 0) << options << "\n" << ran.err;
    return ran.err;
  }
  static bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  const std::string config_ = (tiny("gqa") / "config.json").string();
};

}  // namespace hawser::testing
