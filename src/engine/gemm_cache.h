// `GemmCache`: the GEMM algorithms that earlier sessions of this user measured, so that later ones start without
// measuring again.
//
// One text file for each GPU model and version of cuBLASLt, in the form of ops::gemm_choices without its notes. A file
// that is missing or cannot be read counts as empty, and a folder that cannot be written is left as it is: a cache
// never fails a run. Several processes may add at once; each replaces the file as a whole, so that the choices of one
// of them may be lost, and are measured again by the next session that needs them.
#pragma once

#include <string>

namespace hawser::engine {

class GemmCache {
 public:
  // With folder "" it keeps nothing.
  explicit GemmCache(std::string folder) : folder_(std::move(folder)) {}
  // $XDG_CACHE_HOME/hawser/gemm_algorithms; without that variable ~/.cache/hawser/gemm_algorithms. "" without a home
  // folder.
  static std::string default_folder();

  // Choices for the GPU and the library that `heading`, the first line of a text of choices, names; "" if there are
  // none.
  std::string read(const std::string& heading) const;
  // Adds the choices of `now` that are not in `before`, line by line. Both have the same first line. What is there for
  // the same GEMM stays.
  void add(const std::string& before, const std::string& now) const;

 private:
  std::string path_of(const std::string& heading) const;
  std::string folder_;
};

}  // namespace hawser::engine
