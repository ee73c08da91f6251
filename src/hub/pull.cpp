#include "hub/pull.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/units.h"
#include "hub/api.h"
#include "hub/download.h"
#include "hub/file_names.h"
#include "io/bounded_file.h"

namespace hawser::hub {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kTransfers = 8;
constexpr std::chrono::milliseconds kBetweenProgress = 100ms;
constexpr std::int64_t kMaxCardBytes = std::int64_t{16} << 20;
constexpr char kConverted[] = "refs/convert/parquet";

// Downloads of files by several threads. The first failure ends the others.
class Transfers {
 public:
  using Complete = std::vector<std::pair<const RemoteFile*, bool>>;  // a file, and whether it was transferred here

  Transfers(const PullRequest& request, RepoCache& cache, const std::string& commit,
            const std::vector<RemoteFile>& files, Transferred& transferred)
      : cache_(cache), commit_(commit), files_(files), transferred_(transferred) {
    for (std::size_t i = std::min(kTransfers, files.size()); i > 0; --i) {
      apis_.push_back(std::make_unique<Api>(request.settings, request.repo, /*reached=*/true));
    }
    running_ = apis_.size();
    for (const auto& api : apis_) threads_.emplace_back([this, &api = *api] { work(api); });
  }
  ~Transfers() {
    cancel();
    for (std::thread& thread : threads_) thread.join();
  }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // The files that have become complete; waits a little for one. `ended`: there will be no more.
  Complete wait(bool& ended) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kBetweenProgress, [&] { return running_ == 0 || !complete_.empty() || cancelled_; });
    if (cancelled_) cancel();
    ended = running_ == 0;
    if (cancelled_ && !ended) changed_.wait_for(lock, kBetweenProgress);
    return std::exchange(complete_, {});
  }

  void throw_if_failed() const {
    if (other_) std::rethrow_exception(other_);
    problems_.throw_if_any();
  }

 private:
  void cancel() {
    cancelled_ = true;
    for (const auto& api : apis_) api->cancel();
  }

  void work(Api& api) {
    while (!cancelled_) {
      const std::size_t at = next_++;
      if (at >= files_.size()) break;
      try {
        const bool mine = download(api, cache_, commit_, files_[at], transferred_, cancelled_);
        const std::lock_guard lock(mutex_);
        complete_.emplace_back(&files_[at], mine);
      } catch (const std::exception& error) {
        failed(error);
      }
      changed_.notify_one();
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_one();
  }

  // What fails after the first failure was cancelled, or has the same reason.
  void failed(const std::exception& error) {
    const std::lock_guard lock(mutex_);
    const auto* mistake = dynamic_cast<const UserError*>(&error);
    if (!cancelled_ && mistake != nullptr) problems_.add_lines(error.what());
    if (!cancelled_ && mistake == nullptr) other_ = std::current_exception();
    cancelled_ = true;
  }

  RepoCache& cache_;
  const std::string& commit_;
  const std::vector<RemoteFile>& files_;
  Transferred& transferred_;
  std::vector<std::unique_ptr<Api>> apis_;
  std::vector<std::thread> threads_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::size_t running_ = 0;
  Complete complete_;
  Problems problems_;
  std::exception_ptr other_;
};

// One pull: the revision's files, and those that the snapshot has by now.
class Pull {
 public:
  explicit Pull(const PullRequest& request)
      : request_(request), cache_(request.settings.cache, request.repo), api_(request.settings, request.repo) {
    remote_ = api_.list();
    for (const RemoteFile& file : remote_.files) {
      names_.push_back(file.name);
      by_name_.emplace(file.name, &file);
    }
  }

  // None for a data set without files that are read.
  std::optional<Pulled> run() {
    if (request_.repo.kind == RepoKind::model) {
      get_model();
    } else if (!get_data()) {
      return std::nullopt;
    }
    // Last: a reference names a commit whose files are there.
    cache_.set_reference(request_.repo.revision(), remote_.commit);
    std::ranges::sort(done_, {}, &PulledFile::name);
    return Pulled{.folder = cache_.snapshot(remote_.commit),
                  .commit = remote_.commit,
                  .files = done_,
                  .received = transferred_.bytes};
  }

 private:
  bool has(const char* name) const { return by_name_.contains(name); }

  void get_model() {
    std::vector<std::string> files = configuration_files(names_);
    Problems problems;
    if (!has(kConfig) && !has(kAdapterConfig)) {
      problems.add({.file = request_.repo.name.text(),
                    .what = "no config.json in this repo",
                    .expected = "a model or an adapter in the format of transformers or PEFT"});
    }
    const WeightFiles weights = problems.empty() && request_.parts == Parts::all
                                    ? weight_files(request_.repo, names_, problems)
                                    : WeightFiles{};
    problems.throw_if_any();
    files.insert(files.end(), weights.files.begin(), weights.files.end());
    if (!weights.index) return get(files);
    // The index names the files with weights.
    get(files);
    get(files_of_index(cache_.snapshot(remote_.commit) + "/" + kWeightsIndex));
  }

  bool get_data() {
    std::string card;
    if (has(kCard)) {
      get({kCard});
      card = io::read_bounded(cache_.snapshot(remote_.commit) + "/" + kCard, kMaxCardBytes);
    }
    const std::vector<std::string> files = data_files(names_, request_.include, card);
    get(files);
    return !files.empty();
  }

  // Files of the snapshot: links what the cache has, and transfers the others.
  void get(const std::vector<std::string>& names) {
    cache_.make();
    std::vector<RemoteFile> missing;
    std::int64_t missing_bytes = 0;
    for (const std::string& name : names) {
      RemoteFile file = remote_file(name);
      progress_.files += 1;
      progress_.bytes += file.bytes.value_or(0);
      if (io::is_file(cache_.blob(file.etag))) {
        transferred_.complete += file.bytes.value_or(0);
        add(file, /*transferred=*/false);
        continue;
      }
      std::int64_t bytes = file.bytes.value_or(0);
      if (io::is_file(cache_.incomplete(file.etag))) {
        bytes -= std::min(bytes, io::File::open(cache_.incomplete(file.etag)).bytes());
      }
      missing_bytes += bytes;
      missing.push_back(std::move(file));
    }
    if (missing.empty()) return;
    check_space(missing_bytes);
    // The small ones first: what is wrong with all of them, such as a gated repo, is known at once.
    std::ranges::sort(missing, {}, [](const RemoteFile& file) { return file.bytes.value_or(0); });
    transfer(missing);
  }

  RemoteFile remote_file(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
      throw UserError(
          Problem{.file = request_.repo.name.text(), .what = "a file of the index is missing in the repo", .at = name});
    }
    const RemoteFile& file = *found->second;
    return file.etag.empty() ? api_.describe(remote_.commit, name) : file;
  }

  void check_space(std::int64_t bytes) const {
    const auto free = io::free_bytes(cache_.folder());
    if (!free || *free >= bytes) return;
    throw UserError(Problem{.file = cache_.folder(),
                            .what = "not enough space for the files of " + request_.repo.name.text(),
                            .expected = format_bytes(Bytes(bytes)),
                            .got = format_bytes(Bytes(*free)),
                            .hint = "HF_HUB_CACHE=FOLDER on another disk"});
  }

  void add(const RemoteFile& file, bool transferred) {
    cache_.link(remote_.commit, file.name, file.etag);
    done_.push_back({.name = file.name, .bytes = file.bytes.value_or(0), .transferred = transferred});
    progress_.files_complete += 1;
    if (request_.file_done) request_.file_done(done_.back());
  }

  // Threads take the files in their order. This thread adds those that are complete.
  void transfer(const std::vector<RemoteFile>& files) {
    Transfers transfers(request_, cache_, remote_.commit, files, transferred_);
    for (bool ended = false; !ended;) {
      const auto complete = transfers.wait(ended);
      for (const auto& [file, mine] : complete) add(*file, mine);
      progress_.bytes_complete = transferred_.complete;
      progress_.received = transferred_.bytes;
      if (request_.progress) request_.progress(progress_);
    }
    transfers.throw_if_failed();
  }

  const PullRequest& request_;
  RepoCache cache_;
  Api api_;
  RemoteRepo remote_;
  std::vector<std::string> names_;
  std::map<std::string, const RemoteFile*> by_name_;
  Transferred transferred_;
  PullProgress progress_;
  std::vector<PulledFile> done_;
};

}  // namespace

Pulled pull(const PullRequest& request) {
  if (auto pulled = Pull(request).run()) return *pulled;
  const Problem none{.file = request.repo.name.text(),
                     .what = "no data in this repo that are read",
                     .expected = ".parquet, .jsonl, .ndjson, .txt, .csv, .tsv or .json files",
                     .at = request.include.empty() ? "" : "--include",
                     .hint = "another data set"};
  if (!request.include.empty() || !request.repo.name.revision.empty()) throw UserError(none);
  // The Hub converts data sets in other formats to Parquet.
  PullRequest converted = request;
  converted.repo.name.revision = kConverted;
  try {
    if (auto pulled = Pull(converted).run()) return *pulled;
  } catch (const NoRevision&) {
    throw UserError(none);
  }
  throw UserError(none);
}

}  // namespace hawser::hub
