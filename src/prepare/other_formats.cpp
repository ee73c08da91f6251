#include "prepare/other_formats.h"

#include <array>
#include <filesystem>
#include <string_view>

#include "base/ascii.h"

namespace hawser::prepare {
namespace {

// IN is the file, OUT its path without the extension.
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
    {".zip", "unzip \"IN\""},
    {".tgz", "tar -xf \"IN\""},
    {".tar.gz", "tar -xf \"IN\""},
    {".tar.zst", "tar -xf \"IN\""},
    {".tar", "tar -xf \"IN\""},
    {".bz2", "bunzip2 -k \"IN\""},
    {".xz", "unxz -k \"IN\""},
});

std::string replaced(std::string_view text, std::string_view from, const std::string& to) {
  std::string out(text);
  if (const std::size_t at = out.find(from); at != std::string::npos) out.replace(at, from.size(), to);
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
    problem.hint =
        replaced(replaced(converter.command, "IN", in), "OUT", in.substr(0, in.size() - converter.ending.size()));
    return problem;
  }
  return problem;
}

}  // namespace hawser::prepare
