// `ResultFile`: an output file named by the user (`--output`, `--trace`, `--svg`), replaced atomically.
//
//   write_result("step.svg", svg);
//
//   ResultFile file("answers.jsonl");
//   while (...) file.write(line);
//   file.commit();
//
// Symbolic links are followed. For a regular file or a new one, the bytes go to a temporary file in the same folder,
// which is synced and renamed over the target on commit, with the target's permissions. Until then, and after a
// failure, the old file is unchanged. Of two concurrent writers the last to commit wins. Anything else (a device, a
// pipe, a descriptor such as /dev/fd/3) is appended to directly, like a shell's `>>`; opening a pipe blocks until it
// has a reader.
//
// Every failure is a UserError with the path as the user typed it and the system's reason.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hawser::io {

// Target of the bytes written to a path.
struct ResultPlace {
  std::string path;       // links resolved
  bool straight = false;  // not a regular file: written directly
};
ResultPlace find_result_place(const std::string& path);

class ResultFile {
 public:
  // What becomes of an uncommitted file when writing fails, the object is destroyed or a signal ends the process. What
  // complete calls of write() wrote is kept like keep_part keeps it, if there is any.
  enum class Unfinished { removed, kept_as_part };

  explicit ResultFile(std::string path, Unfinished unfinished = Unfinished::removed);
  ~ResultFile();  // removes or keeps the temporary file unless commit() or keep_part() was called
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  // Writes all of it with write(2); unbuffered. Kept as a part, the error names the file that has what was written.
  void write(std::string_view text);
  void commit();
  // Keeps what was written so far as PATH.part, or PATH.part-2 and so on if it exists, and returns that name; if
  // written directly, returns the path.
  std::string keep_part();
  bool straight() const { return place_.straight; }

 private:
  [[noreturn]] void fail(int error) const;
  void close_synced();
  std::string keep_written();  // keeps what complete writes wrote as a part and returns its name; "" if there is none

  std::string path_;  // as the user typed it
  ResultPlace place_;
  std::string temporary_;  // "" if there is none any more
  std::string part_;       // for kept_as_part: PATH.part
  int descriptor_ = -1;
  std::int64_t written_ = 0;  // bytes of complete writes
};

void write_result(const std::string& path, std::string_view text);

// For a signal handler that ends the process: removes the temporary file of the ResultFile that was opened first, or
// renames it to the name of keep_part if it is kept_as_part and not empty. Async-signal-safe.
void drop_unfinished_result() noexcept;

}  // namespace hawser::io
