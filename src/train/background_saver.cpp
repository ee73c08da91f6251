#include "train/background_saver.h"

#include <chrono>

#include "base/clock.h"
#include "engine/session.h"

namespace hawser::train {

BackgroundSaver::BackgroundSaver(engine::Session& session, std::unique_ptr<comm::Channel> ranks)
    : ranks_(std::move(ranks)) {
  if (session.owns_states()) snapshot_ = std::make_unique<Snapshot>(session, kSavedByRun);
}

BackgroundSaver::~BackgroundSaver() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundSaver::take(const Event& step_end) {
  HAWSER_CHECK(!under_way(), "a snapshot while the previous one is being written");
  if (snapshot_) snapshot_->take(step_end);
}

void BackgroundSaver::start(SaveTo to, engine::RunState state) {
  HAWSER_CHECK(!under_way(), "two concurrent saves");
  error_ = nullptr;
  over_ = false;
  thread_ = std::thread([this, to = std::move(to), state = std::move(state)] {
    const auto begin = std::chrono::steady_clock::now();
    try {
      const std::vector<NamedState> states = snapshot_ ? snapshot_->states() : std::vector<NamedState>{};
      saved_ = {.folder = save_states(ranks_.get(), to, state, states,
                                      [this] {
                                        if (snapshot_) snapshot_->wait();
                                      }),
                .step = state.step,
                .seconds = seconds_since(begin)};
    } catch (...) {
      error_ = std::current_exception();
    }
    over_ = true;
  });
}

std::optional<BackgroundSaver::Saved> BackgroundSaver::collect() {
  if (!under_way() || !over_ || error_ != nullptr) return std::nullopt;
  thread_.join();
  return saved_;
}

std::optional<BackgroundSaver::Saved> BackgroundSaver::finish() {
  if (!under_way()) return std::nullopt;
  thread_.join();
  if (error_ != nullptr) std::rethrow_exception(error_);
  return saved_;
}

}  // namespace hawser::train
