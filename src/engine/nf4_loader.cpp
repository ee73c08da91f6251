#include "engine/nf4_loader.h"

#include <algorithm>

#include "nn/nf4_places.h"
#include "nn/segment_ranges.h"
#include "ops/copy/copy.h"
#include "ops/quantize/quantize_nf4.h"

namespace hawser::engine {

namespace {

// Waits for the stream: the values may be a temporary.
template <class T>
void write(Stream& stream, const std::vector<T>& values, const TensorView& to) {
  HAWSER_CHECK(static_cast<std::int64_t>(values.size() * sizeof(T)) == to.bytes(), values.size(), " values for ",
               to.text());
  transfer(stream, {.name = "load_nf4", .kind = OpKind::transfer, .accesses = {writes(to)}}, to.raw(),
           reinterpret_cast<const std::byte*>(values.data()), to.bytes());
  stream.synchronize();
}

}  // namespace

Nf4Loader::Nf4Loader(Stream& stream, const step::ModelState& state, const models::Model& model, comm::Mesh& mesh,
                     StagedWeights& staged, step::Workspace workspace, const models::WeightSources* sources)
    : stream_(stream),
      state_(state),
      model_(model),
      mesh_(mesh),
      staged_(staged),
      workspace_(std::move(workspace)),
      sources_(sources) {}

models::WeightSources::Place Nf4Loader::stored(const nn::Segment& segment) const {
  if (sources_ == nullptr || !(segment.file == nn::FileForm())) return {};
  models::WeightSources::Place place = sources_->find(segment.name);
  if (place.files == nullptr) return {};
  const checkpoint::QuantizedTensor* const tensor = place.files->find_quantized(place.name);
  return tensor != nullptr && tensor->mean ? place : models::WeightSources::Place();
}

void Nf4Loader::copy_stored(int flat, const TensorView& blocks) {
  const step::FlatState& state = state_.flat(flat);
  std::vector<Nf4DoubleBlock> values;
  for (const nn::SegmentRange& range : nn::segment_ranges(model_.flat(flat), state.begin, state.count)) {
    const nn::Segment& segment = nn::segment_of(model_.flat(flat), range);
    const models::WeightSources::Place place = stored(segment);
    if (place.files == nullptr) continue;
    values.resize(static_cast<std::size_t>(range.count / kNf4Block));
    nn::for_each_global_run(segment, range, [&](std::int64_t global, std::int64_t at, std::int64_t count) {
      place.files->read_blocks(place.name, global / kNf4Block, count / kNf4Block,
                               &values[static_cast<std::size_t>((at - range.at) / kNf4Block)]);
    });
    write(stream_, values, blocks.rows(range.at / kNf4Block, range.count / kNf4Block));
  }
}

void Nf4Loader::load(int flat, const Fill& fill) {
  const step::FlatState& state = state_.flat(flat);
  const nn::Flat& of = model_.flat(flat);
  const bool doubly = of.spec().double_quantized();
  std::optional<nn::Nf4Places> places;
  if (doubly) places.emplace(of);
  const StagedWeights::Nf4 staged = staged_.nf4(flat);
  const TensorView blocks = staged_.compute(flat);
  if (doubly) {
    write(stream_, places->of_blocks(state.begin, state.count), staged.places);
    ops::fill(stream_, {.y = staged.maxima});
  }
  for (std::int64_t first = 0; first < state.count; first += staged.piece.elements()) {
    const std::int64_t count = std::min(staged.piece.elements(), state.count - first);
    const TensorView values = staged.piece.rows(0, count);
    const IndexRange own{first / kNf4Block, count / kNf4Block};
    fill(first, values);
    ops::quantize_nf4(stream_, {.x = values,
                                .q = blocks.rows(own.begin, own.count),
                                .maxima = staged.maxima,
                                .places = doubly ? staged.places.rows(own.begin, own.count) : TensorView()});
    stream_.synchronize();  // the host may write the next piece
  }
  if (doubly) copy_stored(flat, blocks);
  staged_.store_compute(flat);
  if (!doubly) return stream_.synchronize();
  const Domain domain = of.spec().domain;
  step::all_reduce(mesh_.shard(domain), staged.maxima, comm::Reduction::max, stream_, workspace_);
  if (domain == Domain::sliced || domain == Domain::kv_copies) {
    step::all_reduce(mesh_.tensor(), staged.maxima, comm::Reduction::max, stream_, workspace_);
  }
  std::vector<float> maxima(static_cast<std::size_t>(staged.maxima.elements()));
  transfer(stream_, {.name = "fetch_nf4_scales", .kind = OpKind::transfer, .accesses = {reads(staged.maxima)}},
           reinterpret_cast<std::byte*>(maxima.data()), staged.maxima.raw(), staged.maxima.bytes());
  stream_.synchronize();
  flats_.push_back(flat);
  for (const nn::Nf4Places::Tensor& tensor : places->tensors()) {
    std::vector<float>& scales = scales_[tensor.name];
    scales.resize(static_cast<std::size_t>(tensor.blocks));
    const float* const from = maxima.data() + tensor.first_group * kNf4GroupBlocks;
    // Another flat may have other blocks of the tensor.
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = std::max(scales[i], from[i]);
  }
}

void Nf4Loader::finish_unit() {
  for (const int flat : flats_) encode(flat);
  flats_.clear();
  scales_.clear();
}

void Nf4Loader::encode(int flat) {
  const step::FlatState& state = state_.flat(flat);
  const nn::Flat& of = model_.flat(flat);
  const nn::Nf4Places places(of);
  std::map<std::string, std::vector<Nf4Group>> stored_groups;
  std::vector<std::int32_t> own = places.of_blocks(state.begin, state.count);
  for (const nn::SegmentRange& range : nn::segment_ranges(of, state.begin, state.count)) {
    // Its blocks have their codes already.
    if (stored(nn::segment_of(of, range)).files == nullptr) continue;
    std::fill_n(own.begin() + range.at / kNf4Block, range.count / kNf4Block, -1);
  }
  for (const nn::Param& param : of.params()) {
    for (const nn::Segment& segment : param.segments) {
      const models::WeightSources::Place place = stored(segment);
      if (place.files != nullptr) stored_groups.emplace(segment.name, place.files->read_groups(place.name));
    }
  }
  std::vector<float> maxima(static_cast<std::size_t>(places.groups() * kNf4GroupBlocks));
  std::vector<Nf4Group> groups;
  for (const nn::Nf4Places::Tensor& tensor : places.tensors()) {
    const std::vector<float>& scales = scales_.at(tensor.name);
    std::copy(scales.begin(), scales.end(), maxima.begin() + tensor.first_group * kNf4GroupBlocks);
    const auto found = stored_groups.find(tensor.name);
    const std::vector<Nf4Group> of_tensor = found != stored_groups.end() ? found->second : nf4_groups(scales);
    HAWSER_CHECK(static_cast<std::int64_t>(of_tensor.size()) == tensor.groups(), tensor.name, ": ", of_tensor.size(),
                 " groups");
    groups.insert(groups.end(), of_tensor.begin(), of_tensor.end());
  }
  const StagedWeights::Nf4 staged = staged_.nf4(flat);
  write(stream_, own, staged.places);
  write(stream_, maxima, staged.maxima);
  write(stream_, groups, state.nf4_groups);
  const TensorView blocks = staged_.load_compute(flat);
  ops::encode_nf4_scales(stream_,
                         {.maxima = staged.maxima, .groups = state.nf4_groups, .places = staged.places, .q = blocks});
  staged_.store_compute(flat);
  stream_.synchronize();
}

}  // namespace hawser::engine
