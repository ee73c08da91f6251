// What pulls of models and data sets need: the server, a token, the cache, libcurl. Nothing is requested.
#include "base/cat.h"
#include "base/paths.h"
#include "base/units.h"
#include "cli/doctor/findings.h"
#include "hub/api.h"
#include "hub/hub_settings.h"

namespace hawser::cli::checks {
namespace {

// Bytes that the cache may still grow; its folder may not exist yet.
std::string free_space(std::string folder) {
  while (!io::is_folder(folder) && folder.size() > 1) folder = folder_of(folder);
  const auto free = io::free_bytes(folder);
  return free ? cat(", ", format_bytes(Bytes(*free)), " free") : "";
}

}  // namespace

void check_hub(Findings& out) {
  const std::string check = "Hub";
  try {
    const hub::Settings settings = hub::read_settings();
    const std::string cache = settings.cache + free_space(settings.cache);
    if (settings.offline) {
      return out.ok(check, "offline", cat("models by name must be in ", cache));
    }
    const hub::Api api(settings, {});  // loads libcurl
    out.ok(check, cat(settings.endpoint, settings.token.empty() ? ", no token" : ", token of " + settings.token_place),
           cat("models by name are pulled into ", cache));
  } catch (const UserError& error) {
    out.warn(check, "cannot be used", "models by name must be in the cache", error.what());
  }
}

}  // namespace hawser::cli::checks
