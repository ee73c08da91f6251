#include "cli/timeline_file.h"

#include "base/paths.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "profile/timeline_svg.h"

namespace hawser::cli {

void check_timeline_file(const std::string& path, const std::string& at, const std::string& model, Problems& problems) {
  engine::check_output(path, at, {{"--model", model}}, problems);
  const io::ResultPlace place = io::find_result_place(path);
  if (!place.straight) io::check_writable(folder_of(place.path), problems);
  if (io::is_folder(path)) problems.add({.file = path, .what = "a folder", .expected = "a file to write", .at = at});
}

void write_timeline(const std::string& path, const std::vector<profile::RankTimeline>& ranks) {
  io::write_result(path, path.ends_with(".svg") ? profile::to_svg(ranks) : profile::to_chrome_trace(ranks));
}

}  // namespace hawser::cli
