// Mistakes of a recipe: `plan` and `fit` print all of them at once, each with its place.
#include "cli/testing/binary.h"

namespace hawser {
namespace {

class RecipeErrors : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("data.jsonl", testing::forty_documents());
  }
  // A valid recipe for the model `gqa`, of two blocks; `more`: further sections, from line 5 on.
  void recipe(const std::string& more, const std::string& batch = "2") {
    write("r.yaml", "model: {path: " + testing::tiny("gqa").string() + "}\n" +
                        "data: {train: data.jsonl, sequence_length: 16}\ntrain: {steps: 1, global_batch_size: " +
                        batch + "}\noutput: run\n" + more);
  }
  void both_reject(const std::string& arguments, const std::vector<std::string>& lines) {
    rejected("plan r.yaml " + arguments, lines);
    rejected("fit r.yaml " + arguments, lines);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  }
};

const std::string kLinears = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj";

TEST_F(RecipeErrors, PlanAndFitReportTheSame) {
  recipe(
      "memory:\n  activation_checkpointing: [full, none, none]\nmoe: {z_loss_coefficient: 1}\n"
      "precision: {compute: fp8, fp8: {layers: [1, 7]}}\n",
      "3");
  const std::vector<std::string> of_model = {
      "r.yaml: list length differs from the number of blocks (expected 2, got 3) at memory.activation_checkpointing, "
      "line 6",
      "r.yaml: the model has no experts at moe.z_loss_coefficient, line 7",
      "r.yaml: the model has no such block (expected blocks 0 to 1, got 7) at precision.fp8.layers, line 8"};
  std::vector<std::string> all = {
      "r.yaml: batch does not divide over the ranks (expected a multiple of 2: 2 data ranks x micro_batch_size 1, got "
      "3) at train.global_batch_size, line 3; try train.global_batch_size: 2 or 4"};
  all.insert(all.end(), of_model.begin(), of_model.end());
  both_reject("--ranks 2", all);
  both_reject("", of_model);
}

}  // namespace
}  // namespace hawser
