#include "config/yaml.h"

#include <yaml-cpp/eventhandler.h>

#include <sstream>

#include "base/error.h"

namespace hawser {
namespace {

// Builds nothing; stops a parser that emits more nodes than a text of this size can contain.
class Counter : public YAML::EventHandler {
 public:
  explicit Counter(std::size_t max) : left_(max) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override {
    count(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    count(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    count(mark);
  }
  void OnMapEnd() override {}

 private:
  void count(const YAML::Mark& mark) {
    if (left_-- == 0) throw YAML::ParserException(mark, "neither keys nor a list");
  }
  std::size_t left_;
};

}  // namespace

std::vector<YAML::Node> read_yaml_documents(const std::string& text) {
  // A node takes a byte, or the position between two: "[,]" has no nodes, "{a,b}" two keys and two empty values.
  Counter counter(2 * text.size() + 16);
  std::istringstream in(text);
  YAML::Parser parser(in);
  while (parser.HandleNextDocument(counter)) {
  }
  return YAML::LoadAll(text);
}

YAML::Node read_yaml(const std::string& text) {
  const std::vector<YAML::Node> documents = read_yaml_documents(text);
  return documents.empty() ? YAML::Node() : documents.front();
}

YAML::Node read_yaml_file(const std::string& path, const std::string& text) {
  try {
    const auto documents = read_yaml_documents(text);
    if (documents.size() > 1) {
      throw UserError({.file = path, .what = "more than one YAML document", .hint = "one recipe a file"});
    }
    return documents.empty() ? YAML::Node() : documents.front();
  } catch (const YAML::Exception& broken) {
    if (const int line = line_indented_by_tab(text); line > 0 && line <= broken.mark.line + 2) {
      throw UserError({.file = path,
                       .what = "broken YAML: a tab in the indentation",
                       .expected = "spaces",
                       .at = cat("line ", line)});
    }
    throw UserError({.file = path,
                     .what = "broken YAML: " + broken.msg,
                     .at = cat("line ", broken.mark.line + 1, ", column ", broken.mark.column + 1)});
  }
}

int line_indented_by_tab(const std::string& text) {
  std::istringstream in(text);
  int number = 1;
  for (std::string line; std::getline(in, line); ++number) {
    const auto tab = line.find('\t'), word = line.find_first_not_of(" \t\r");
    if (word != std::string::npos && line[word] != '#' && tab < word) return number;
  }
  return 0;
}

}  // namespace hawser
