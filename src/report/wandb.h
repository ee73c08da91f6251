// `Wandb`: writes a run for Weights & Biases as its client does offline; `wandb sync PATH` uploads it.
//
// FOLDER/offline-run-YYYYMMDD_HHMMSS-ID/run-ID.wandb holds records of the client's wandb_internal.proto in a LevelDB
// log: a file header of 7 bytes, then blocks of 32 KiB (the file header is part of the first). A record is cut where a
// block ends. Each piece has a header of 7 bytes: u32 CRC-32 of its kind and bytes, u16 length, u8 kind (1: full, 2:
// first, 3: middle, 4: last), all little-endian. The rest of a block that has no space for a header is zero.
#pragma once

#include <optional>
#include <string>

#include "io/record_file.h"
#include "report/protobuf.h"
#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::report {

// The pieces of a record that begins at byte `at` of the file.
std::string wandb_pieces(std::int64_t at, std::string_view record);

struct WandbOptions {
  std::string folder;
  std::string project;
  // The last step before a resume, and the file with its steps. A resumed run continues the id of the run in `folder`
  // and writes all steps again, so that the file has each step once. If metrics_file lacks steps, the earlier run stays
  // as it is and the resumed one gets a new id. 0: a new run; runs in `folder` are removed.
  std::int64_t resumed_step = 0;
  std::string metrics_file;
};

class Wandb : public Sink {
 public:
  // UserError if the file cannot be written. A copy of a run's folder, beside its original, gets a W&B run of its own.
  Wandb(const WandbOptions& options, const RunFacts& facts);

  void step(const StepMetrics& metrics) override;
  void finding(const Finding& finding) override;
  void sync() override { file_->sync(); }
  void finish(Ending ending) override;
  std::string trouble() override { return std::exchange(trouble_, ""); }
  const std::string& path() const { return path_; }  // the run's folder

 private:
  void append(int kind, const Message& record);
  void write_start(const WandbOptions& options, const RunFacts& facts);
  void write_summary(const StepMetrics& metrics);

  std::string id_, path_, trouble_;
  std::optional<io::RecordFile> file_;
  std::int64_t bytes_ = 0, records_ = 0;
  double start_ = 0;  // of the run, Unix time in seconds
  StepMetrics last_;
};

}  // namespace hawser::report
