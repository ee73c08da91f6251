#include "prepare/parquet_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "io/files.h"

namespace hawser::prepare {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPluginFile = "libhawser_parquet.so";
constexpr const char* kHint = "the folder parquet/ of the build, copied beside the program hawser";

#define HAWSER_TEXT_OF(name) #name
#define HAWSER_NAME_OF(name) HAWSER_TEXT_OF(name)

// The file of a folder that begins so; "" if there is none.
std::string file_with(const std::string& folder, const std::string& begin) {
  for (const std::string& name : io::list_folder(folder)) {
    if (name.starts_with(begin)) return name;
  }
  return "";
}

// Why dlopen failed: "libarrow.so.2600: cannot open shared object file: ...", or a symbol that is missing.
Problem not_loaded(const std::string& path, const std::string& folder, const std::string& reason) {
  const std::string library = reason.substr(0, reason.find(':'));
  const std::size_t version = library.find(".so.");
  const bool is_arrow = version != std::string::npos && library.find('/') == std::string::npos &&
                        (library.starts_with("libarrow") || library.starts_with("libparquet"));
  if (!is_arrow || io::exists((fs::path(folder) / library).string())) {
    return {.file = path, .what = cat("cannot be loaded, but reads Parquet files: ", reason), .hint = kHint};
  }
  const std::string other = file_with(folder, library.substr(0, version + 4));
  return {.file = (fs::path(folder) / library).string(),
          .what = other.empty() ? "not found, but reads Parquet files" : "Arrow of another version",
          .expected = library,
          .got = other,
          .hint = kHint};
}

const ParquetPlugin& load_plugin(const std::string& folder) {
  const std::string path = (fs::path(folder) / kPluginFile).string();
  if (!io::exists(path)) {
    throw UserError({.file = path,
                     .what = "not found, but reads Parquet files",
                     .hint = cat(kHint, "; a build with -DHAWSER_PARQUET=OFF has none")});
  }
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw UserError(not_loaded(path, folder, ::dlerror()));
  using Entry = const ParquetPlugin*();
  auto* const entry = reinterpret_cast<Entry*>(::dlsym(library, HAWSER_NAME_OF(HAWSER_PARQUET_ENTRY)));
  const ParquetPlugin* const plugin = entry == nullptr ? nullptr : entry();
  if (plugin == nullptr || plugin->interface != kParquetInterface || plugin->string_abi != kStringAbi) {
    const auto versions = [](int interface, int abi) { return cat("interface ", interface, ", C++ ABI ", abi); };
    throw UserError({.file = path,
                     .what = "of another build of hawser",
                     .expected = versions(kParquetInterface, kStringAbi),
                     .got = plugin == nullptr ? "none" : versions(plugin->interface, plugin->string_abi),
                     .hint = kHint});
  }
  if (plugin->arrow_loaded != plugin->arrow_built) {
    throw UserError({.file = path,
                     .what = "Arrow of another version",
                     .expected = cat(plugin->arrow_built),
                     .got = cat(plugin->arrow_loaded),
                     .hint = kHint});
  }
  return *plugin;
}

}  // namespace

std::string parquet_folder() {
  std::error_code unknown;
  const fs::path program = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  const fs::path installed = program.parent_path() / "lib" / "hawser" / "parquet";  // cmake/install.cmake
  return io::exists(installed.string()) ? installed.string() : (program / "parquet").string();
}

const ParquetPlugin& parquet_plugin() {
  static const ParquetPlugin& loaded = load_plugin(parquet_folder());
  return loaded;
}

}  // namespace hawser::prepare
