#include "prepare/other_formats.h"

#include <array>
#include <filesystem>
#include <string_view>

#include "base/ascii.h"
#include "base/cat.h"
#include "io/files.h"

namespace hawser::prepare {
namespace {

// IN is the file. OUT.ENDING is a file beside it that does not exist: the path without the ending, if possible.
struct Converter {
  std::string_view ending, command;
};

constexpr auto kConverters = std::to_array<Converter>({
    {".arrow", "python3 -c 'import datasets; datasets.Dataset.from_file(\"IN\").to_json(\"OUT.jsonl\")'"},
    {".feather",
     "python3 -c 'import pandas; pandas.read_feather(\"IN\").to_json(\"OUT.jsonl\", orient=\"records\", lines=True)'"},
    {".orc",
     "python3 -c 'import pandas; pandas.read_orc(\"IN\").to_json(\"OUT.jsonl\", orient=\"records\", lines=True)'"},
    {".xlsx", "python3 -c 'import pandas; pandas.read_excel(\"IN\", dtype=str).to_csv(\"OUT.csv\", index=False)'"},
    {".xls", "python3 -c 'import pandas; pandas.read_excel(\"IN\", dtype=str).to_csv(\"OUT.csv\", index=False)'"},
    {".ods", "python3 -c 'import pandas; pandas.read_excel(\"IN\", dtype=str).to_csv(\"OUT.csv\", index=False)'"},
    {".md", "cp \"IN\" \"OUT.txt\""},
    {".rst", "cp \"IN\" \"OUT.txt\""},
    {".text", "cp \"IN\" \"OUT.txt\""},
    {".html", "pandoc -t plain \"IN\" -o \"OUT.txt\""},
    {".docx", "pandoc -t plain \"IN\" -o \"OUT.txt\""},
    {".pdf", "pdftotext \"IN\" \"OUT.txt\""},
    {".zip", "unzip -n \"IN\""},
    {".tgz", "tar --skip-old-files -xf \"IN\""},
    {".tar.gz", "tar --skip-old-files -xf \"IN\""},
    {".tar.zst", "tar --skip-old-files -xf \"IN\""},
    {".tar", "tar --skip-old-files -xf \"IN\""},
    {".bz2", "bunzip2 -k \"IN\""},
    {".xz", "unxz -k \"IN\""},
});

std::string replaced(std::string_view text, std::string_view from, const std::string& to) {
  std::string out(text);
  if (const std::size_t at = out.find(from); at != std::string::npos) out.replace(at, from.size(), to);
  return out;
}

// A file that does not exist: "a.jsonl" for "a.parquet", else "a.parquet.jsonl", "a.parquet-2.jsonl" and so on.
std::string free_name(const std::string& in, std::size_t stem, const std::string& ending) {
  std::string out = in.substr(0, stem) + ending;
  for (int i = 1; io::exists(out); ++i) out = cat(in, i == 1 ? "" : cat("-", i), ending);
  return out;
}

}  // namespace

Problem unread_format(const std::string& path) {
  const std::string lower = lower_case(path);
  Problem problem{.file = path,
                  .what = "unknown file type",
                  .expected = ".jsonl, .json, .csv, .tsv or .txt, also .gz or .zst, .parquet, or a token file"};
  for (const Converter& converter : kConverters) {
    if (!lower.ends_with(converter.ending)) continue;
    // Names that quotes do not protect stay out of the command.
    const bool plain = path.find_first_of("'\"\\$`") == std::string::npos;
    const std::string in = plain ? path : "FILE" + std::string(converter.ending);
    problem.what = "file type not read";
    problem.got = converter.ending;
    problem.hint = converter.command;
    if (const std::size_t out = problem.hint.find("OUT."); out != problem.hint.npos) {
      const std::size_t end = problem.hint.find('"', out);
      const std::string ending = problem.hint.substr(out + 3, end - out - 3);
      problem.hint.replace(out, end - out, free_name(in, in.size() - converter.ending.size(), ending));
    }
    problem.hint = replaced(problem.hint, "IN", in);  // before OUT, whose name may have these letters
    return problem;
  }
  return problem;
}

}  // namespace hawser::prepare
