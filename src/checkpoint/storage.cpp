#include "checkpoint/storage.h"

#include <map>

#include "checkpoint/storage/posix_storage.h"

namespace hawser::checkpoint {
namespace {

std::map<std::string, std::unique_ptr<Storage>>& schemes() {
  static std::map<std::string, std::unique_ptr<Storage>> registered;
  return registered;
}

}  // namespace

Storage& storage_of(const std::string& path) {
  for (const auto& [scheme, storage] : schemes()) {
    if (path.starts_with(scheme)) return *storage;
  }
  return posix_storage();
}

void register_storage(const std::string& scheme, std::unique_ptr<Storage> storage) {
  schemes()[scheme] = std::move(storage);
}

PathParts split_path(const std::string& path) {
  std::string whole = path;
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  const auto slash = whole.rfind('/');
  if (slash == std::string::npos) return {".", whole};
  return {slash == 0 ? "/" : whole.substr(0, slash), whole.substr(slash + 1)};
}

}  // namespace hawser::checkpoint
