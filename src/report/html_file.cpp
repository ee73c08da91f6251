#include "report/html_file.h"

#include <algorithm>
#include <exception>

#include "base/clock.h"
#include "io/files.h"
#include "report/html_report.h"

namespace hawser::report {

HtmlFile::HtmlFile(HtmlFileOptions options, RunFacts facts, RunHistory earlier)
    : options_(std::move(options)), facts_(std::move(facts)), history_(std::move(earlier)) {
  thread_ = std::thread([this] { work(); });
}

HtmlFile::~HtmlFile() {
  HtmlFile::finish(Ending::failed);
}

void HtmlFile::step(const StepMetrics& metrics) {
  const std::lock_guard<std::mutex> lock(mutex_);
  history_.add(metrics);
  if (!std::exchange(stepped_, true)) changed_.notify_all();
}

void HtmlFile::finding(const Finding& finding) {
  const std::lock_guard<std::mutex> lock(mutex_);
  history_.add(finding);
}

void HtmlFile::set_memory(std::vector<std::pair<std::string, std::int64_t>> memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  facts_.memory = std::move(memory);
}

void HtmlFile::finish(Ending ending) {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (ending != Ending::failed) {
    write(facts_, history_, ending);
    if (options_.log) options_.log("wrote " + options_.path);
    return;
  }
  try {
    if (stepped_ && options_.in_place()) write(facts_, history_, ending);
  } catch (const std::exception&) {
    // Most likely the reason why the run failed, which is reported already.
  }
}

void HtmlFile::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stepped_ || over_; });
  while (!over_) {
    const RunFacts facts = facts_;
    const RunHistory history = history_;
    lock.unlock();
    const Clock::time_point began = Clock::now();
    try {
      if (options_.in_place()) write(facts, history, std::nullopt);
    } catch (const std::exception&) {
      // The next page may be written; finish() reports that the last one cannot be.
    }
    const Clock::duration pause = std::max<Clock::duration>(options_.every, 100 * (Clock::now() - began));
    lock.lock();
    changed_.wait_for(lock, pause, [this] { return over_; });
  }
}

void HtmlFile::write(const RunFacts& facts, const RunHistory& history, std::optional<Ending> ending) const {
  io::write_text_atomically(options_.path, html_report({.facts = facts,
                                                        .history = history,
                                                        .ending = ending,
                                                        .rules = options_.rules,
                                                        .phases = options_.phases(),
                                                        .time = unix_time()}));
}

}  // namespace hawser::report
