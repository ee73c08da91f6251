// The elements of a model's flat buffers: where they come from, what they are called, where they go.
//
// A piece of a unit's flat buffer is a range [begin, begin + count) of its elements (nn::Unit: parameters in order,
// each at a multiple of kGrain, gaps zero; the padding of Unit::total counts as a gap). Nothing here depends on how the
// buffers are cut: any cuts that cover a buffer give the same whole. Names are those of Hugging Face's files, one a
// segment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/save.h"
#include "models/model.h"
#include "tensor/named_state.h"

namespace hawser::models {

// The stretch that a segment and a piece have in common.
struct SegmentPiece {
  int param = 0, segment = 0;  // places in Unit::params() and Param::segments
  std::int64_t first = 0;      // element of the segment, row-major
  std::int64_t at = 0;         // element of the piece
  std::int64_t count = 0;      // more than 0
};
std::vector<SegmentPiece> segment_pieces(const nn::Unit& unit, std::int64_t begin, std::int64_t count);

// The parts of a piece that belong to no parameter.
std::vector<nn::Unit::Gap> gap_pieces(const nn::Unit& unit, std::int64_t begin, std::int64_t count);

// All tensors of the model as a Hugging Face folder holds them, in the model's order; a tied head has none of its own.
struct HfTensor {
  std::string name;
  Shape shape;
  int unit = 0, param = 0, segment = 0;
};
std::vector<HfTensor> hf_tensors(const Model& model);

// Adds a problem for every tensor that is missing, has another shape, or a type that is no floating-point number that
// we read (F32, BF16, F16, F64), and for every tensor the model has no place for. Left alone are rotary_emb.inv_freq,
// which old files carry, and in a tied model an lm_head.weight with the very bytes of the embedding.
void check_weights(const Model& model, const checkpoint::SafetensorsFolder& folder, Problems& problems);

// Fills `flat` [count] (float32 or bf16, dense, cpu) with the piece. Reads only what is needed. The folder has passed
// check_weights.
void load_flat(const Model& model, int unit, checkpoint::SafetensorsFolder& folder, std::int64_t begin,
               std::int64_t count, const TensorView& flat);

// Fills `flat` [count] (float32 or bf16, dense, on the stream's device) with initial values, on the stream. A normal
// one is std * RandomStream(seed, fnv1a(segment name)).normal(element of the segment).
void initialise_flat(const Model& model, int unit, std::uint64_t seed, std::int64_t begin, std::int64_t count,
                     Stream& stream, const TensorView& flat);

// One NamedState a segment that the piece touches, named prefix + segment name, with the boxes of it that lie in `flat`
// [count] (dense, any type and device). Prefixes: "" for parameters, "optimizer/exp_avg/", "optimizer/exp_avg_sq/".
std::vector<NamedState> unit_states(const Model& model, int unit, std::int64_t begin, std::int64_t count,
                                    const TensorView& flat, const std::string& prefix = "");

// What transformers looks for beside the weights to make a tokenizer: the files of a folder, or a tokenizer.json and
// what lies beside it, by the names they go under in a model folder. UserError when one cannot be read.
std::vector<checkpoint::Attachment> tokenizer_files(const std::string& folder_or_tokenizer_json);

struct ExportOptions {
  DType stored = DType::bf16;                     // or f32
  std::string config;                             // text of config.json (models/families.h)
  std::vector<checkpoint::Attachment> tokenizer;  // its files; none: the folder gets none
  std::int64_t max_shard_bytes = 5'000'000'000;
  bool replace = false;  // an earlier export there may be replaced
};

// Fills the boxes of these states (float32 views on the cpu), as checkpoint::Checkpoint::read does.
using StateSource = std::function<void(const std::vector<NamedState>& wanted)>;

// Writes the model to a Hugging Face folder, all or nothing: tensors piece after piece, kExportElements at most at a
// time, config.json, and the tokenizer's files. UserError when that fails.
constexpr std::int64_t kExportElements = std::int64_t{16} << 20;
void export_folder(const std::string& folder, const Model& model, const StateSource& source,
                   const ExportOptions& options);

}  // namespace hawser::models
