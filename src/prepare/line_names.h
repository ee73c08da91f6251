// `LineNames`: what the keys of lines and the roles of messages are called in a user's files.
//
//   columns {messages: dialogue, role: speaker, content: said}, roles {assistant: [agent]}
//   {"dialogue": [{"speaker": "agent", "said": "Hello."}]}  is read as
//   {"messages": [{"role": "assistant", "content": "Hello."}]}
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hawser::prepare {

struct LineNames {
  // By the name of a key or a role here: what files call it. Of several, the first that a line has counts.
  std::map<std::string, std::vector<std::string>> columns, roles;

  bool empty() const { return columns.empty() && roles.empty(); }
  // 0 if it is empty.
  std::uint64_t fingerprint() const;

  // Gives the values of a line, or of one of its messages, their names here. Adds the names of the file that it has to
  // `found`: "data.columns: dialogue".
  void rename_line(nlohmann::ordered_json& line, std::set<std::string>& found) const;
  void rename_message(nlohmann::ordered_json& message, std::set<std::string>& found) const;
  // The role of a name in a file; the name itself if none is given for it. Adds it to `found`: "data.roles: agent".
  const std::string& role(const std::string& name, std::set<std::string>& found) const;
  // All that can be found.
  std::set<std::string> all() const;

  // Whether a file with these columns has the key.
  bool has(const std::function<bool(std::string_view)>& column, std::string_view key) const;
  // All names that files may have for keys of a line.
  std::vector<std::string_view> line_columns() const;
};

// Adds a problem at data.columns for a name that no line and no message has.
void check_names(const LineNames& names, Problems& problems);

}  // namespace hawser::prepare
