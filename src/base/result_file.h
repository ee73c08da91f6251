// A file that the user named for a command's result: `--output`, `--trace`, `--svg`.
//
//   write_result("step.svg", svg);
//
//   ResultFile file("answers.jsonl");
//   while (...) file.write(line);
//   file.commit();
//
// Links are followed. A regular file, or none yet: what is written lies beside it under a name of its own, and takes
// its place, with its rights, when it is whole and on the disk; until then, and after a failure, what was there stays
// as it was. Of two at once the last to commit wins. Anything else (a device, a pipe, a descriptor as in /dev/fd/3)
// gets the bytes as they are written, as behind a shell's `>>`; opening a pipe waits for its reader.
//
// Every failure is a UserError: the path as the user typed it, and the system's reason.
#pragma once

#include <string>
#include <string_view>

namespace hawser {

// Where the bytes for a path go.
struct ResultPlace {
  std::string path;       // links followed
  bool straight = false;  // no regular file: written as it stands
};
ResultPlace find_result_place(const std::string& path);

class ResultFile {
 public:
  // What becomes of a file that is never committed when a signal ends the process (drop_unfinished_result).
  enum class Unfinished { removed, kept_as_part };

  explicit ResultFile(std::string path, Unfinished unfinished = Unfinished::removed);
  ~ResultFile();  // without commit() or keep_part() there is nothing left of it
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  // Hands all of it to the system at once.
  void write(std::string_view text);
  void commit();
  // What was written so far stays as PATH.part; returns that name. Of one that is written straight: its path.
  std::string keep_part();
  bool straight() const { return place_.straight; }

 private:
  [[noreturn]] void fail(int error) const;
  void finish(const std::string& name);

  std::string path_;  // as the user typed it
  ResultPlace place_;
  std::string temporary_;  // "": none, or no longer
  int descriptor_ = -1;
};

void write_result(const std::string& path, std::string_view text);

// For a signal's handler that ends the process: removes the unfinished file of the ResultFile that was opened first, or
// renames it to PATH.part where it is to be kept and holds something.
void drop_unfinished_result() noexcept;

}  // namespace hawser
