#include "engine/does_not_fit.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/format_apart.h"
#include "base/host_name.h"
#include "base/text.h"

namespace hawser::engine {

namespace {

// The ranks of one machine.
struct Sum {
  int ranks = 0;
  std::int64_t pinned = 0;
  std::optional<std::int64_t> limit;
};

}  // namespace

std::string reason_against(comm::Channel* ranks, const RankNeed& need) {
  nlohmann::json mine{{"too large", need.too_large}, {"machine", host_name()}, {"pinned", need.pinned}};
  if (need.machine_has) mine["limit"] = need.machine_has->value();
  std::map<std::string, Sum> machines;
  for (const std::string& text : ranks != nullptr ? ranks->all_gather_strings(mine.dump()) : std::vector{mine.dump()}) {
    const nlohmann::json of = nlohmann::json::parse(text);
    if (const auto too_large = of.at("too large").get<std::string>(); !too_large.empty()) return too_large;
    Sum& sum = machines[of.at("machine").get<std::string>()];
    ++sum.ranks;
    sum.pinned += of.at("pinned").get<std::int64_t>();
    if (!of.contains("limit")) continue;
    const auto limit = of.at("limit").get<std::int64_t>();
    sum.limit = std::min(sum.limit.value_or(limit), limit);
  }
  for (const auto& [machine, sum] : machines) {
    if (!sum.limit || sum.pinned <= *sum.limit) continue;
    const auto [has, needs] = format_apart(*sum.limit, sum.pinned);
    std::string hint = sum.ranks > 1 ? "fewer ranks on each machine" : "";
    if (!need.hint.empty()) hint += cat(hint.empty() ? "" : ", or ", need.hint);
    return cat("does not fit in host memory (expected at most ", has, " for the ", plural(sum.ranks, "rank"), " on ",
               machine, ", got ", needs, ")", hint.empty() ? "" : "; try ", hint);
  }
  return "";
}

void expect_fits(comm::Channel* ranks, const RankNeed& need) {
  const std::string reason = reason_against(ranks, need);
  if (!reason.empty()) throw DoesNotFit(reason);
}

}  // namespace hawser::engine
