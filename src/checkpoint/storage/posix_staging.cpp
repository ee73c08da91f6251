#include "checkpoint/storage/posix_staging.h"

#include <chrono>
#include <thread>

#include "base/cat.h"
#include "base/error.h"
#include "checkpoint/manifest.h"
#include "checkpoint/storage/posix_storage.h"
#include "io/files.h"

namespace hawser::checkpoint {
namespace {

// Serializes the short critical sections of all processes that stage below one folder. If the file system has no locks,
// or the holder hangs for 10 s, held() is false and the caller continues without cleaning.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) : file_(io::File::open_or_create(cat(folder, "/.lock"))) {
    constexpr std::chrono::seconds kPatience{10};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (true) {
      const io::File::Lock lock = file_.try_lock();
      held_ = lock == io::File::Lock::taken;
      if (lock != io::File::Lock::held_elsewhere || std::chrono::steady_clock::now() > deadline) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  bool held() const { return held_; }

 private:
  io::File file_;
  bool held_ = false;
};

bool is_live(const std::string& folder, const std::string& owner) {
  const std::string path = cat(folder, "/", owner);
  try {
    if (!io::exists(path)) return false;  // created with the folder, under the lock: its process ended
    // Without locks, or in a folder that only another user may read, liveness is unknown: leave it.
    return io::File::open_or_create(path).try_lock() != io::File::Lock::taken;
  } catch (const UserError&) {
    return true;
  }
}

// Removes leftovers, except those of a live process, whose file `owner` is locked. Requires the lock of the folder.
void clean_leftovers(const std::string& parent, const std::string& owner) {
  for (const std::string& name : io::list_folder(parent)) {
    const std::string path = cat(parent, "/", name);
    const Leftover kind = leftover_kind(name);
    if (kind == Leftover::trash || (kind == Leftover::temporary && !is_live(path, owner))) io::remove_tree(path);
  }
}

class PosixStaging final : public Staging {
 public:
  // The owner's, and with an empty `owner` another process's.
  PosixStaging(const std::string& path, std::string ticket, std::string owner)
      : path_(path),
        parent_(split_path(path).parent),
        ticket_(std::move(ticket)),
        folder_(cat(parent_, "/", ticket_)),
        owner_(std::move(owner)) {}

  ~PosixStaging() override {
    if (!open_) return;
    if (!owner_.empty()) {
      io::remove_tree(folder_);
    } else {
      for (const std::string& name : created_) io::remove_tree(cat(folder_, "/", name));
    }
  }

  void make(std::int64_t bytes) {
    io::make_folders(parent_);
    const FolderLock lock(parent_);
    if (lock.held()) clean_leftovers(parent_, owner_);
    io::check_space(folder_, bytes);
    io::make_folder(folder_);
    open_ = true;
    locked_ = io::File::create(cat(folder_, "/", owner_));
    locked_.try_lock();
  }

  const std::string& ticket() const override { return ticket_; }

  std::unique_ptr<ObjectWriter> create(const std::string& name, std::int64_t bytes) override {
    const std::string path = cat(folder_, "/", name);
    io::check_space(path, bytes);
    if (name == owner_) return std::make_unique<Writer>(&locked_, io::File());
    auto writer = std::make_unique<Writer>(nullptr, io::File::create(path));
    created_.push_back(name);
    open_ = true;
    return writer;
  }

  void put(const std::string& name, std::string_view text) override {
    const auto bytes = static_cast<std::int64_t>(text.size());
    const auto object = create(name, bytes);
    object->write(0, reinterpret_cast<const std::byte*>(text.data()), bytes);
    object->finish();
  }

  void hand_over() override { open_ = false; }

  void commit(const std::string& name, std::string_view text, const std::vector<ObjectSize>& expected) override {
    HAWSER_CHECK(!owner_.empty() && open_, "commit of a staging area of another process, or twice");
    Problems problems;
    for (const ObjectSize& object : expected) {
      const std::string path = cat(folder_, "/", object.name);
      const std::int64_t bytes = io::exists(path) ? io::File::open(path).bytes() : -1;
      if (bytes == object.bytes) continue;
      problems.add({.file = path,
                    .what = "rank 0 sees a different file size than was written",
                    .expected = cat(object.bytes, " bytes"),
                    .got = bytes < 0 ? "no file" : cat(bytes),
                    .hint = "an output folder that all nodes share"});
    }
    problems.throw_if_any();
    put(name, text);
    io::sync_folder(folder_);

    const FolderLock lock(parent_);
    bool swapped = false;
    if (io::exists(path_)) {
      swapped = io::exchange_paths(folder_, path_);
      // Where a swap is not possible, neither exists for a moment; older checkpoints cover it.
      if (!swapped) remove_folder(path_);
    }
    if (!swapped) io::rename_path(folder_, path_);
    expect_renamed(locked_, cat(path_, "/", owner_));
    open_ = false;
    io::sync_folder(parent_);
    locked_.close();
    if (swapped) io::remove_tree(folder_);  // the replaced one, already under a dot-name
  }

 private:
  // Writes to a file of its own, or to the owner's, which stays open for its lock.
  class Writer final : public ObjectWriter {
   public:
    Writer(io::File* shared, io::File own) : shared_(shared), own_(std::move(own)) {}
    void write(std::int64_t begin, const std::byte* from, std::int64_t count) override {
      file().write_at(begin, from, count);
    }
    void finish() override {
      file().sync();
      if (shared_ == nullptr) own_.close();
    }

   private:
    io::File& file() { return shared_ != nullptr ? *shared_ : own_; }
    io::File* shared_;
    io::File own_;
  };

  std::string path_, parent_, ticket_, folder_, owner_;
  std::vector<std::string> created_;
  bool open_ = false;  // there is something to remove
  io::File locked_;    // the owner's object: distinguishes a live process from a leftover
};

}  // namespace

std::unique_ptr<Staging> stage_folder(const std::string& path, const std::string& owner, std::int64_t bytes) {
  auto staging = std::make_unique<PosixStaging>(path, temporary_name(split_path(path).name), owner);
  staging->make(bytes);
  return staging;
}

std::unique_ptr<Staging> join_folder(const std::string& path, const std::string& ticket) {
  HAWSER_CHECK(leftover_kind(ticket) == Leftover::temporary, "the ticket ", io::in_quotes(ticket));
  return std::make_unique<PosixStaging>(path, ticket, "");
}

void remove_folder(const std::string& path) {
  const auto [parent, name] = split_path(path);
  const std::string trash = cat(parent, "/.", name, ".trash-", io::make_nonce());
  if (!io::try_rename_path(path, trash)) return remove_folder_in_place(path);
  io::sync_folder(parent);
  io::remove_tree(trash);
}

void remove_folder_in_place(const std::string& path) {
  io::remove_tree(cat(path, "/", kManifestName));
  io::sync_folder(path);
  io::remove_tree(path);
  if (io::exists(path)) throw io::IoError(Problem{.file = path, .what = "cannot remove the folder"});
  io::sync_folder(split_path(path).parent);
}

}  // namespace hawser::checkpoint
