// `choose_split`: which files of a folder are its training or validation data, by the names that data sets on the
// Hugging Face Hub have.
//
//   data/train-00000-of-00002.parquet  data/test-00000-of-00001.parquet    the first is training data
//   en/train/a.jsonl  en/validation/a.jsonl                                 so is en/train/a.jsonl
//   books/a.txt  books/b.txt                                                no split: all are
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hawser::prepare {

enum class Split { train, validation, test };

const char* name_of(Split split);

// The split that the path of a file below its folder names; nullopt if it names none. A folder or a file names a split
// if its name has one of these words between separators (- . _ space, digits): train, training; validation, valid, dev,
// val; test, testing, eval, evaluation. Upper case is no word. What comes first decides: the file NAME-00000-of-00003,
// then the folders from the top, then the file. https://huggingface.co/docs/hub/datasets-file-names-and-splits
std::optional<Split> split_of(std::string_view path);

struct ChosenSplit {
  std::vector<std::string> read;                             // files of the split, in the order given
  std::map<std::string, std::vector<std::string>> left_out;  // by the name of their split; "other": of none
  // Why the files that the README.md of the folder declares cannot be read.
  std::optional<Problem> problem;
  // The names of the data sets in the folder that each have files of the split, if there are several: `en` and `fr` of
  // en/train.jsonl and fr/train.jsonl, or data/train_sft and data/train_gen of data/train_sft-00000-of-00001.parquet
  // and so on. Then one must be named.
  std::vector<std::string> several;
  std::string one;  // a path or a pattern of the last of `several`
};

// A file, and what says of which split it is.
struct SplitFile {
  std::string path;
  std::optional<Split> split;
  std::string set;           // as in ChosenSplit::several; "": the only one
  std::string pattern = {};  // that declares it; "": its name says its split
};

// The files of the split among those of a folder. If no file has a split, all are read; if files have only others, a
// file without a split is training data.
ChosenSplit choose_split(const std::string& folder, const std::vector<SplitFile>& files, Split wanted);

// The same for files whose paths below the folder name their split.
ChosenSplit choose_split(const std::string& folder, const std::vector<std::string>& files, Split wanted);

// Why a choice has no files to read, or those of several data sets.
std::optional<Problem> split_problem(const std::string& folder, const ChosenSplit& chosen, Split wanted);

// "test (2 files) and validation (1 file)": what is left out. "" if nothing is.
std::string left_out_text(const ChosenSplit& chosen);

}  // namespace hawser::prepare
