// A Storage in the memory of the process: proves that checkpoints need no more than storage.h says. Sets are immutable
// maps that readers share, so remove() never has to wait for one.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/cat.h"
#include "base/error.h"
#include "checkpoint/storage.h"

namespace hawser::checkpoint::testing {

class MemoryStorage final : public Storage {
 public:
  using Set = std::map<std::string, std::string>;

  std::vector<std::string> list(const std::string& prefix) override {
    const std::lock_guard guard(mutex_);
    std::vector<std::string> names;
    for (const auto& [path, set] : sets_) {
      if (split_path(path).parent == prefix) names.push_back(split_path(path).name);
    }
    return names;
  }
  std::unique_ptr<StorageReader> open(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    const auto found = sets_.find(path);
    if (found == sets_.end()) throw UserError(Problem{.file = path, .what = "no such checkpoint folder"});
    return std::make_unique<MemoryReader>(path, found->second);
  }
  std::unique_ptr<StorageReader> peek(const std::string& path) override { return open(path); }
  std::unique_ptr<Staging> stage(const std::string& path, const std::string&, std::int64_t) override {
    const std::lock_guard guard(mutex_);
    const std::string ticket = cat("ticket-", ++tickets_);
    staged_[ticket] = std::make_shared<Set>();
    return std::make_unique<MemoryStaging>(*this, path, ticket, true);
  }
  std::unique_ptr<Staging> join(const std::string& path, const std::string& ticket) override {
    return std::make_unique<MemoryStaging>(*this, path, ticket, false);
  }
  bool remove(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    sets_.erase(path);
    return true;
  }
  bool move(const std::string& from, const std::string& to) override {
    const std::lock_guard guard(mutex_);
    if (sets_.contains(to)) return false;
    sets_[to] = sets_.at(from);
    sets_.erase(from);
    return true;
  }
  void copy(const std::string& from, const std::string& to) override {
    const std::lock_guard guard(mutex_);
    sets_[to] = sets_.at(from);
  }
  void recover(const std::string&, const std::function<std::optional<std::int64_t>(StorageReader&)>&) override {}

  // Changes a committed object, as a failing disk does.
  void damage(const std::string& path, const std::string& name, std::size_t byte) {
    const std::lock_guard guard(mutex_);
    auto changed = std::make_shared<Set>(*sets_.at(path));
    changed->at(name).at(byte) ^= 1;
    sets_[path] = changed;
  }
  std::size_t staged() const { return staged_.size(); }

 private:
  class MemoryReader final : public StorageReader {
   public:
    MemoryReader(const std::string& path, std::shared_ptr<const Set> set) : StorageReader(path), set_(std::move(set)) {}
    bool has(const std::string& name) const override { return set_->contains(name); }
    std::int64_t bytes(const std::string& name) const override {
      return static_cast<std::int64_t>(object(name).size());
    }
    void read(const std::string& name, std::int64_t begin, std::byte* to, std::int64_t count) override {
      if (begin + count > bytes(name)) throw UserError(Problem{.file = path_of(name), .what = "truncated file"});
      std::memcpy(to, object(name).data() + begin, static_cast<std::size_t>(count));
    }
    std::string read_text(const std::string& name, std::int64_t limit) const override {
      if (bytes(name) > limit) throw UserError(Problem{.file = path_of(name), .what = "file too long"});
      return object(name);
    }

   private:
    const std::string& object(const std::string& name) const {
      const auto found = set_->find(name);
      if (found == set_->end()) throw UserError(Problem{.file = path_of(name), .what = "no such object"});
      return found->second;
    }
    std::shared_ptr<const Set> set_;
  };

  class MemoryStaging final : public Staging {
   public:
    MemoryStaging(MemoryStorage& storage, std::string path, std::string ticket, bool owner)
        : storage_(storage), path_(std::move(path)), ticket_(std::move(ticket)), owner_(owner) {}
    ~MemoryStaging() override {
      const std::lock_guard guard(storage_.mutex_);
      const auto found = storage_.staged_.find(ticket_);
      if (!open_ || found == storage_.staged_.end()) return;
      if (owner_) {
        storage_.staged_.erase(found);
      } else {
        for (const std::string& name : created_) found->second->erase(name);
      }
    }
    const std::string& ticket() const override { return ticket_; }
    std::unique_ptr<ObjectWriter> create(const std::string& name, std::int64_t) override {
      created_.push_back(name);
      return std::make_unique<Writer>(*this, name);
    }
    void put(const std::string& name, std::string_view text) override { store(name, std::string(text)); }
    void hand_over() override { open_ = false; }
    void commit(const std::string& name, std::string_view text, const std::vector<ObjectSize>& expected) override {
      const std::shared_ptr<Set> set = storage_.staged_.at(ticket_);
      for (const ObjectSize& object : expected) {
        const auto found = set->find(object.name);
        if (found == set->end() || static_cast<std::int64_t>(found->second.size()) != object.bytes) {
          throw UserError(Problem{.file = object.name, .what = "another size than was written"});
        }
      }
      put(name, text);
      const std::lock_guard guard(storage_.mutex_);
      storage_.sets_[path_] = set;
      storage_.staged_.erase(ticket_);
      open_ = false;
    }

   private:
    class Writer final : public ObjectWriter {
     public:
      Writer(MemoryStaging& staging, std::string name) : staging_(staging), name_(std::move(name)) {}
      void write(std::int64_t begin, const std::byte* from, std::int64_t count) override {
        bytes_.resize(static_cast<std::size_t>(begin + count));
        std::memcpy(bytes_.data() + begin, from, static_cast<std::size_t>(count));
      }
      void finish() override { staging_.store(name_, bytes_); }

     private:
      MemoryStaging& staging_;
      std::string name_, bytes_;
    };
    void store(const std::string& name, std::string bytes) {
      const std::lock_guard guard(storage_.mutex_);
      storage_.staged_.at(ticket_)->insert_or_assign(name, std::move(bytes));
    }

    MemoryStorage& storage_;
    std::string path_, ticket_;
    bool owner_ = false, open_ = true;
    std::vector<std::string> created_;
  };

  std::mutex mutex_;
  int tickets_ = 0;
  std::map<std::string, std::shared_ptr<const Set>> sets_;
  std::map<std::string, std::shared_ptr<Set>> staged_;
};

}  // namespace hawser::checkpoint::testing
