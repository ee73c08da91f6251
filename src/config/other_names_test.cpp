#include "config/other_names.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "config/schema.h"

namespace hawser {
namespace other_names_test {

TEST(OtherNames, HintsAreKeysOrRemarks) {
  for (const OtherNames& row : other_names()) {
    const std::string first(row.hint.substr(0, row.hint.find(' ')));
    EXPECT_TRUE(find_key(first) != nullptr || first == "removing" || first == "hawser") << row.hint;
  }
}

TEST(OtherNames, EachIsListedOnceAndIsNoKey) {
  std::set<std::string> seen;
  for (const OtherNames& row : other_names()) {
    std::istringstream names{std::string(row.names)};
    for (std::string name; names >> name;) {
      EXPECT_TRUE(seen.insert(name).second) << name;
      EXPECT_EQ(find_key(name), nullptr) << name;
      EXPECT_FALSE(is_section(name)) << name;
      EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.*"), std::string::npos) << name;
    }
  }
}

TEST(OtherNames, AreFoundWithSectionsDashesAndCapitals) {
  for (const auto& [name, hint] : std::initializer_list<std::pair<const char*, const char*>>{
           {"optimizer.lr", "optimizer.learning_rate"},
           {"data.max_seq_length", "data.sequence_length"},
           {"tokenizer.path", "data.tokenizer"},
           {"dataset.packed", "data.pack"},
           {"training.seq_len", "data.sequence_length"},
           {"epochs", "train.epochs"},
           {"num_train_epochs", "train.epochs"},
           {"--micro-batch-size", ""},  // a key of the recipe in another section: nearest_key
           {"tensor-model-parallel-size", "parallel.tensor_parallel_degree"},
           {"LR", "optimizer.learning_rate"},
           {"lr_scheduler_type", "optimizer.schedule"},
           {"training.warmup_ratio", ""},  // a key of the recipe in another section
           {"lr_warmup_fraction", "optimizer.warmup_ratio"},
           {"lr_wsd_decay_iters", "optimizer.decay_steps"},
           {"lora.rank", "adapter.rank"},
           {"lora", "adapter.kind (lora)"},
           {"lora_target_modules", "adapter.targets"},
           {"optimizer.beta3", ""},
           {"xyzzy", ""},
           {"xyzzy.", ""},
           {"", ""},
           {"-", ""}}) {
    EXPECT_EQ(hint_for_other_name(name), hint) << name;
  }
}

}  // namespace other_names_test
}  // namespace hawser
