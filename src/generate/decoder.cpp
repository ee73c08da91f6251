#include "generate/decoder.h"

#include <algorithm>
#include <sstream>

#include "engine/gemm_algorithms.h"
#include "engine/load_state.h"
#include "engine/rank_device.h"
#include "engine/rank_sync.h"
#include "engine/run_state.h"
#include "ops/copy/permute_rows.h"

namespace hawser::generate {

Decoder::Decoder(engine::OpenModel& open, const Recipe& recipe, const CacheSize& size, int threads, Device& device,
                 engine::SessionChecks checks, const Ranks& ranks)
    : size_(size), buckets_(shape_buckets(size)), vocabulary_(open.model->vocabulary()) {
  std::vector<engine::StepConfig> configs;
  for (plan::Layout& layout : pass_layouts(recipe, *open.model, size, threads, device.kind(), ranks)) {
    configs.push_back({step::Purpose::logits, std::move(layout)});
  }
  mesh_ = engine::make_mesh(ranks.world, configs.front().layout.mesh, recipe.run.collective_timeout_s, device);
  // On a GPU, choose GEMM algorithms for the passes worth measuring: long prompts and a full batch.
  for (const std::size_t bucket : {bucket_for_rows(buckets_, std::min(size.positions, kChunkRows)),
                                   bucket_for_sequences(buckets_, size.sequences)}) {
    const plan::Layout& layout = configs[bucket].layout;
    if (!layout.deterministic) engine::prepare_gemms(*open.model, layout, device, step::Purpose::logits);
  }
  session_ = std::make_unique<engine::Session>(*open.model, std::move(configs), device, *mesh_, recipe.memory.capacity,
                                               checks);
  engine::load_weights(*session_, open);
}

std::span<const float> Decoder::prefill(std::int64_t slot, std::int64_t position, std::span<const std::int32_t> ids) {
  HAWSER_CHECK(!ids.empty(), "a prompt without tokens");
  for (std::size_t at = 0; at < ids.size();) {
    const std::size_t count = std::min<std::size_t>(ids.size() - at, kChunkRows);
    const Piece piece{slot, position + static_cast<std::int64_t>(at), ids.subspan(at, count)};
    run(bucket_for_rows(buckets_, static_cast<std::int64_t>(count)), {&piece, 1});
    at += count;
  }
  return logits(0);
}

void Decoder::decode(std::span<const NewToken> tokens) {
  std::vector<Piece> pieces;
  for (const NewToken& token : tokens) pieces.push_back({token.slot, token.position, {&token.id, 1}});
  run(bucket_for_sequences(buckets_, static_cast<std::int64_t>(tokens.size())), pieces);
}

std::span<const float> Decoder::logits(std::int64_t i) const {
  HAWSER_CHECK(i < rows_, "no logits of row ", i);
  return {logits_->data() + i * vocabulary_, static_cast<std::size_t>(vocabulary_)};
}

std::vector<std::int32_t> Decoder::choose(const Pick& pick) {
  std::istringstream text(engine::short_work_on_rank_zero(mesh_->channel(), [&] {
    std::ostringstream ids;
    for (std::int64_t i = 0; i < rows_; ++i) ids << pick(i, logits(i)) << ' ';
    return ids.str();
  }));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows_));
  for (std::int32_t& id : ids) text >> id;
  return ids;
}

void Decoder::run(std::size_t bucket, std::span<const Piece> pieces) {
  const auto rows = static_cast<std::size_t>(buckets_[bucket].rows);
  auto batch = std::make_shared<step::HostBatch>();
  for (const Piece& piece : pieces) {
    const auto begin = static_cast<std::int32_t>(batch->ids.size()),
               count = static_cast<std::int32_t>(piece.ids.size());
    const auto position = static_cast<std::int32_t>(piece.position);
    HAWSER_CHECK(
        piece.slot >= 0 && piece.slot < size_.sequences && position >= 0 && position + count <= size_.positions,
        "rows ", position, " + ", count, " of slot ", piece.slot, " are outside the KV cache");
    HAWSER_CHECK(std::ranges::count(pieces, piece.slot, &Piece::slot) == 1, "slot ", piece.slot, " is in a pass twice");
    const auto first = static_cast<std::int32_t>(piece.slot * size_.positions);
    for (std::int32_t i = 0; i < count; ++i) {
      batch->ids.push_back(piece.ids[static_cast<std::size_t>(i)]);
      batch->positions.push_back(position + i);
      batch->slot_mapping.push_back(first + position + i);
    }
    batch->diagonal.insert(batch->diagonal.end(), {begin, count, first, position + count, position, 0});
    batch->logit_positions.push_back(begin + count - 1);
  }
  HAWSER_CHECK(batch->ids.size() <= rows, batch->ids.size(), " rows in a pass of ", rows);
  batch->token_mask.assign(batch->ids.size(), 1);
  batch->token_mask.resize(rows, 0);
  batch->ids.resize(rows, 0);
  batch->positions.resize(rows, 0);
  batch->slot_mapping.resize(rows, ops::kNoRow);
  step::StepInput input;
  input.batches.push_back(std::move(batch));
  const step::StepOutput output = session_->enqueue(bucket, input);
  session_->wait(output.end);
  logits_ = output.logits;
  rows_ = static_cast<std::int64_t>(pieces.size());
}

std::vector<std::string> Decoder::notes() {
  std::vector<std::string> out = session_->notes();
  for (std::string& line : engine::slow_kernels(session_->stream())) out.push_back(std::move(line));
  return out;
}

}  // namespace hawser::generate
