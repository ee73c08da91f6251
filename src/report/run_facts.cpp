#include "report/run_facts.h"

#include "base/cat.h"
#include "base/units.h"

namespace hawser::report {

Fact count_fact(const std::string& name, std::int64_t count) {
  const std::string exact = cat(count), rounded = format_count(static_cast<double>(count));
  return {name, rounded, rounded == exact ? "" : exact};
}

}  // namespace hawser::report
