// `TensorBoard`: writes TensorBoard event files, FOLDER/events.out.tfevents.SECONDS.HOST.PROCESS.hawser.
//
// A file is a sequence of records: u64 length, u32 masked CRC-32C of the length, the bytes, u32 masked CRC-32C of the
// bytes, all little-endian:
//   masked(c) = rotate_right(c, 15) + 0xA282EAD8
// A record holds an Event of TensorFlow's core/util/event.proto in protocol-buffer wire format; the first record names
// the version of the format.
#pragma once

#include <chrono>
#include <string>

#include "io/record_file.h"
#include "report/run_facts.h"
#include "report/sink.h"

namespace hawser::report {

// The bytes of one record.
std::string tfrecord(std::string_view data);

class TensorBoard : public Sink {
 public:
  // A run resumed after `resumed_step` starts a new file; it invalidates the later steps of earlier files. 0: a new
  // run; the event files of an earlier run in this folder are removed. UserError if the file cannot be written.
  TensorBoard(const std::string& folder, const RunFacts& facts, std::int64_t resumed_step = 0);

  void step(const StepMetrics& metrics) override;
  void finding(const Finding& finding) override;
  void sync() override { file_.sync(); }
  void finish(Ending) override { file_.sync(); }
  const std::string& path() const { return file_.path(); }

 private:
  void write_text(const char* tag, std::int64_t step, const std::string& markdown);

  io::RecordFile file_;
};

}  // namespace hawser::report
