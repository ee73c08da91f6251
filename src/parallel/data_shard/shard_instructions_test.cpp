// What a gradient waits for: the ranks of a group may be a block apart, however many flats a block has.
#include "parallel/data_shard/shard_instructions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace hawser::parallel {
namespace shard_instructions_test {

using program::Instruction;
using program::Op;
using program::Program;
using program::StreamId;

// Backward of `blocks` blocks of two layers each, the last block first. Layer 2b + 1 begins the gradients of block b's
// flats, layer 2b completes them.
Program backward_of(int blocks, int flats_per_block) {
  std::vector<Computation> computations;
  for (int layer = 2 * blocks - 1; layer >= 0; --layer) {
    Computation computation{.instruction = {.op = Op::backward, .layer = layer, .micro_batch = 0}};
    for (int f = 0; f < flats_per_block; ++f) computation.gradients.push_back(layer / 2 * flats_per_block + f);
    computations.push_back(std::move(computation));
  }
  Program program;
  write_sharded(program, computations, {.reduce = true});
  return program;
}

bool of_block(const Instruction& instruction, int block, int flats_per_block) {
  return instruction.op == Op::reduce && instruction.flat / flats_per_block == block;
}

TEST(ShardInstructions, GradientsOfABlockWaitForTheBlockBeforeTheLast) {
  constexpr int kBlocks = 4;
  for (const int flats : {1, 2, 3}) {
    const Program program = backward_of(kBlocks, flats);
    for (const Instruction& i : program.instructions) {
      if (i.op != Op::backward) continue;
      const int block = i.layer / 2;
      // Of the reductions that it waits for, the last one: their stream runs them in order.
      int last = -1;
      for (const int id : i.after) {
        ASSERT_EQ(program.instructions[static_cast<std::size_t>(id)].stream, StreamId::reduce);
        last = std::max(last, id);
      }
      if (i.layer % 2 == 0 || block + 2 >= kBlocks) {
        EXPECT_EQ(last, -1) << flats << " flats a block, layer " << i.layer;
        continue;
      }
      ASSERT_GE(last, 0) << flats << " flats a block, layer " << i.layer;
      EXPECT_TRUE(of_block(program.instructions[static_cast<std::size_t>(last)], block + 2, flats)) << i.layer;
      for (const Instruction& later : program.instructions) {
        EXPECT_FALSE(of_block(later, block + 2, flats) && later.id > last) << "still reduced while it is overwritten";
      }
    }
  }
}

// A gather overwrites the buffer of the use that is prefetch + 1 before it.
TEST(ShardInstructions, AGatherWaitsForTheUseWhoseBufferItTakes) {
  constexpr int kLayers = 6;
  for (const int prefetch : {1, 2, 3}) {
    std::vector<Computation> computations;
    for (int layer = 0; layer < kLayers; ++layer) {
      computations.push_back(
          {.instruction = {.op = Op::forward, .layer = layer, .micro_batch = 0}, .weights = {{.flat = layer}}});
    }
    Program program;
    write_sharded(program, computations, {.gather = true, .prefetch = prefetch});
    int gathers = 0;
    for (const Instruction& i : program.instructions) {
      if (i.op != Op::gather) continue;
      ++gathers;
      std::vector<int> layers;  // that it waits for
      for (const int id : i.after) layers.push_back(program.instructions[static_cast<std::size_t>(id)].layer);
      const int before = i.flat - prefetch - 1;
      EXPECT_EQ(layers, before < 0 ? std::vector<int>() : std::vector<int>{before}) << i.flat << " ahead " << prefetch;
    }
    EXPECT_EQ(gathers, kLayers);
  }
}

}  // namespace shard_instructions_test
}  // namespace hawser::parallel
