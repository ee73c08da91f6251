// `Storage`: where checkpoints are kept, in the style of an object store. A checkpoint is a set of objects under one
// path, `PREFIX/NAME/OBJECT`. Objects are put into a staging area, become visible together by one conditional commit,
// and are then read by range; a committed set never changes, it is replaced or removed.
//
//   Storage& storage = storage_of(path);                            // by the scheme of the path; else POSIX files
//   auto staging = storage.stage(path, "rank-00000.bin", bytes);    // one process; the others join() its ticket
//   auto object = staging->create("rank-00000.bin", bytes);
//   object->write(0, data, bytes), object->finish();
//   staging->commit("manifest.json", text, {{"rank-00000.bin", bytes}});
//   storage.open(path)->read("rank-00000.bin", begin, to, count);
//
// A failure of the storage that says nothing about what is stored (permissions, a server that does not answer) is an
// io::IoError; other failures are a UserError. Objects are used by one thread at a time; a Storage by any number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::checkpoint {

struct ObjectSize {
  std::string name;
  std::int64_t bytes = 0;
};

// The objects of one set, for reading.
class StorageReader {
 public:
  explicit StorageReader(std::string path) : path_(std::move(path)) {}
  virtual ~StorageReader() = default;
  StorageReader(const StorageReader&) = delete;
  StorageReader& operator=(const StorageReader&) = delete;

  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }  // for messages

  virtual bool has(const std::string& name) const = 0;
  virtual std::int64_t bytes(const std::string& name) const = 0;
  // Fills `to` with bytes begin … begin+count of an object; UserError if it ends before.
  virtual void read(const std::string& name, std::int64_t begin, std::byte* to, std::int64_t count) = 0;
  // A whole object of at most `limit` bytes.
  virtual std::string read_text(const std::string& name, std::int64_t limit) const = 0;

 private:
  std::string path_;
};

// One object that is being put.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;
  // `begin` never decreases; bytes that are skipped are zeros.
  virtual void write(std::int64_t begin, const std::byte* from, std::int64_t count) = 0;
  virtual void finish() = 0;  // the object is durable
};

// Objects that are not visible yet. One that is destroyed before commit() or hand_over() removes what this process put;
// the owner's removes all of it.
class Staging {
 public:
  virtual ~Staging() = default;

  virtual const std::string& ticket() const = 0;  // what other processes join() with

  // Checks that `bytes` fit and starts an object. One object at a time; the writer ends before the staging does.
  virtual std::unique_ptr<ObjectWriter> create(const std::string& name, std::int64_t bytes) = 0;
  virtual void put(const std::string& name, std::string_view text) = 0;  // a small object

  // Not the owner, when its objects are finished: from here on they are the owner's, to commit or to remove.
  virtual void hand_over() = 0;

  // The owner: puts the object `name`, then makes the set visible in one step in place of an earlier one of its path,
  // on the condition that every object of `expected` is there with its size; else a UserError with a line for each that
  // is not.
  virtual void commit(const std::string& name, std::string_view text, const std::vector<ObjectSize>& expected) = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;

  // Names directly below a prefix, sorted, without staged and removed sets. Empty if there is no such prefix.
  virtual std::vector<std::string> list(const std::string& prefix) = 0;

  // Opens a set for reading. While the StorageReader exists the set stays readable, even if it is replaced or remove()
  // is called, as far as the storage can ensure it. UserError if there is no such set.
  virtual std::unique_ptr<StorageReader> open(const std::string& path) = 0;
  // The same without keeping others from removing it.
  virtual std::unique_ptr<StorageReader> peek(const std::string& path) = 0;

  // Starts a set that commit() makes visible as `path`, and removes what processes that ended left of others beside it.
  // `owner` is the object that this process will create; `bytes`, of all objects, must fit.
  virtual std::unique_ptr<Staging> stage(const std::string& path, const std::string& owner, std::int64_t bytes) = 0;
  // The staging area of another process.
  virtual std::unique_ptr<Staging> join(const std::string& path, const std::string& ticket) = 0;

  // Removes a set. A crash leaves it complete or not visible. False: it stays, since a reader needs it.
  virtual bool remove(const std::string& path) = 0;
  // Gives a set another name. False if `to` exists.
  virtual bool move(const std::string& from, const std::string& to) = 0;
  // Makes `to` a set with the objects of `from`, in place of an earlier one in one step, if possible without copying.
  // One process at a time for one `to`.
  virtual void copy(const std::string& from, const std::string& to) = 0;
  // Where copy() cannot replace in one step, a crash in it may leave no `to`: makes that one of the remaining sets
  // visible whose `version` is highest. Does nothing if `to` exists or no set has a version.
  virtual void recover(const std::string& to,
                       const std::function<std::optional<std::int64_t>(StorageReader&)>& version) = 0;
};

// The storage of paths that begin with a registered scheme, such as "memory://"; else the one of POSIX files.
Storage& storage_of(const std::string& path);

// Adds a storage for the rest of the process, or replaces the one of that scheme. Not while another thread saves.
void register_storage(const std::string& scheme, std::unique_ptr<Storage> storage);

// "a/b/" and "a/b" are "a" and "b"; "b" is "." and "b".
struct PathParts {
  std::string parent, name;
};
PathParts split_path(const std::string& path);

}  // namespace hawser::checkpoint
