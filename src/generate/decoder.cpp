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
    : size_(size),
      buckets_(shape_buckets(size)),
      vocabulary_(open.model->vocabulary()),
      max_passes_(generate::passes_in_flight(ranks.partition)) {
  std::vector<engine::StepConfig> configs;
  for (plan::Layout& layout : pass_layouts(recipe, *open.model, size, threads, device.kind(), ranks)) {
    configs.push_back({step::Purpose::logits, std::move(layout)});
  }
  mesh_ = engine::make_mesh(ranks.world, configs.front().layout.mesh, recipe.run.collective_timeout_s, device);
  // On a GPU, choose GEMM algorithms for the passes worth measuring: long prompts and a full batch.
  for (const std::size_t bucket : {bucket_for_rows(buckets_, std::min(size.positions, kChunkRows)),
                                   bucket_for_sequences(buckets_, size.group_sequences())}) {
    const plan::Layout& layout = configs[bucket].layout;
    if (!layout.deterministic) engine::prepare_gemms(*open.model, layout, device, step::Purpose::logits);
  }
  session_ = std::make_unique<engine::Session>(*open.model, std::move(configs), device, *mesh_, recipe.memory.capacity,
                                               checks);
  engine::load_weights(*session_, open);
}

void Decoder::enqueue(std::span<const NewToken> tokens, Pick pick, std::int64_t sequences) {
  std::vector<Piece> pieces;
  for (const NewToken& token : tokens) pieces.push_back({token.slot, token.position, {&token.id, 1}});
  const std::int64_t planned = std::max(sequences, static_cast<std::int64_t>(tokens.size()));
  start({.pick = std::move(pick)}, bucket_for_sequences(buckets_, planned), pieces);
}

void Decoder::enqueue(std::int64_t slot, std::int64_t position, std::span<const std::int32_t> ids, Pick pick) {
  const auto count = static_cast<std::int64_t>(ids.size());
  const Piece piece{slot, position, ids};
  start({.pick = std::move(pick), .end = position + count}, bucket_for_rows(buckets_, count), {&piece, 1});
}

std::span<const float> Decoder::prefill(std::int64_t slot, std::int64_t position, std::span<const std::int32_t> ids) {
  HAWSER_CHECK(!ids.empty(), "a prompt without tokens");
  HAWSER_CHECK(in_flight_.empty(), in_flight_.size(), " passes in flight before a prompt alone");
  for (std::size_t at = 0; at < ids.size();) {
    if (in_flight() == max_passes_) choose();
    const std::size_t count = std::min<std::size_t>(ids.size() - at, kChunkRows);
    enqueue(slot, position + static_cast<std::int64_t>(at), ids.subspan(at, count), {});
    at += count;
  }
  while (!in_flight_.empty()) choose();
  return has_logits() ? logits(0) : std::span<const float>();
}

void Decoder::decode(std::span<const NewToken> tokens) {
  HAWSER_CHECK(in_flight_.empty(), in_flight_.size(), " passes in flight before a pass alone");
  enqueue(tokens, {});
  choose();
}

bool Decoder::has_logits() const {
  return mesh_->place().pipeline + 1 == mesh_->sizes().pipeline;
}

// The tokens of the oldest pass without them.
void Decoder::choose_next() {
  Pass& pass = in_flight_[static_cast<std::size_t>(chosen_++)];
  // On every rank, which finds an error of its streams here. This costs no time: a rank's part of the pass ends before
  // the last stage's.
  session_->wait(pass.output.end);
  if (!pass.pick) return;
  const Rank first(comm::rank_of({.pipeline = mesh_->sizes().pipeline - 1}, mesh_->sizes()));
  const auto count = static_cast<std::int64_t>(pass.slots.size());
  try {
    std::istringstream text(engine::on_rank(mesh_->channel(), first, [&] {
      std::ostringstream ids;
      for (std::int64_t i = 0; i < count; ++i) ids << pass.pick(i, row(pass.output, i)) << ' ';
      return ids.str();
    }));
    pass.tokens.resize(pass.slots.size());
    for (std::int32_t& id : pass.tokens) text >> id;
  } catch (const Error&) {
    pass.error = std::current_exception();
  }
}

std::vector<std::int32_t> Decoder::choose() {
  HAWSER_CHECK(!in_flight_.empty(), "no pass in flight");
  if (chosen_ == 0) choose_next();
  const Pass pass = std::move(in_flight_.front());
  in_flight_.pop_front();
  --chosen_;
  last_ = pass.output;
  if (pass.error) {
    drop();
    std::rethrow_exception(pass.error);
  }
  return pass.tokens;
}

void Decoder::drop() {
  while (!in_flight_.empty()) {
    try {
      choose();
    } catch (const std::exception&) {  // the caller has the first one
    }
  }
}

std::span<const float> Decoder::row(const step::StepOutput& output, std::int64_t i) const {
  const std::vector<float>* const all = output.logits.get();
  HAWSER_CHECK(all != nullptr && (i + 1) * vocabulary_ <= static_cast<std::int64_t>(all->size()), "no logits of row ",
               i);
  return {all->data() + i * vocabulary_, static_cast<std::size_t>(vocabulary_)};
}

void Decoder::check_slots(const Pass& pass, std::span<const Piece> pieces) const {
  HAWSER_CHECK(in_flight() < max_passes_, "more than ", max_passes_, " passes in flight");
  for (const Piece& piece : pieces) {
    const auto before = std::find_if(in_flight_.rbegin(), in_flight_.rend(), [&](const Pass& other) {
      return std::ranges::find(other.slots, piece.slot) != other.slots.end();
    });
    HAWSER_CHECK(!piece.ids.empty(), "a pass without tokens of slot ", piece.slot);
    HAWSER_CHECK(std::ranges::count(pieces, piece.slot, &Piece::slot) == 1, "slot ", piece.slot, " is in a pass twice");
    HAWSER_CHECK(before == in_flight_.rend() || (pass.end >= 0 && before->end == piece.position),
                 "a pass in flight is in slot ", piece.slot, ", too");
  }
}

void Decoder::start(Pass pass, std::size_t bucket, std::span<const Piece> pieces) {
  check_slots(pass, pieces);
  const auto rows = static_cast<std::size_t>(buckets_[bucket].rows);
  auto batch = std::make_shared<step::HostBatch>();
  for (const Piece& piece : pieces) {
    const auto begin = static_cast<std::int32_t>(batch->ids.size()),
               count = static_cast<std::int32_t>(piece.ids.size());
    const auto position = static_cast<std::int32_t>(piece.position);
    HAWSER_CHECK(
        piece.slot >= 0 && piece.slot < size_.sequences && position >= 0 && position + count <= size_.positions,
        "rows ", position, " + ", count, " of slot ", piece.slot, " are outside the KV cache");
    const auto first = static_cast<std::int32_t>(piece.slot * size_.positions);
    for (std::int32_t i = 0; i < count; ++i) {
      batch->ids.push_back(piece.ids[static_cast<std::size_t>(i)]);
      batch->positions.push_back(position + i);
      batch->slot_mapping.push_back(first + position + i);
    }
    batch->diagonal.insert(batch->diagonal.end(), {begin, count, first, position + count, position, 0});
    batch->logit_positions.push_back(begin + count - 1);
    pass.slots.push_back(piece.slot);
  }
  HAWSER_CHECK(batch->ids.size() <= rows, batch->ids.size(), " rows in a pass of ", rows);
  batch->token_mask.assign(batch->ids.size(), 1);
  batch->token_mask.resize(rows, 0);
  batch->ids.resize(rows, 0);
  batch->positions.resize(rows, 0);
  batch->slot_mapping.resize(rows, ops::kNoRow);
  step::StepInput input;
  input.batches.push_back(std::move(batch));
  pass.output = session_->enqueue(bucket, input);
  in_flight_.push_back(std::move(pass));
  // The last stage must choose tokens as soon as a pass ends, not when the caller asks, which is after as many passes
  // as the first stage needs. When the tokens of a pass are known, stage s has run the p - 1 - s passes after it; one
  // more is enqueued. So no stage waits for its host, and none is in choose_next() long before there are tokens.
  const int stages = mesh_->sizes().pipeline, ahead = stages + 1 - mesh_->place().pipeline;
  while (in_flight() - chosen_ >= ahead) choose_next();
}

std::vector<std::string> Decoder::notes() {
  std::vector<std::string> out = session_->notes();
  for (std::string& line : engine::slow_kernels(session_->stream())) out.push_back(std::move(line));
  return out;
}

}  // namespace hawser::generate
