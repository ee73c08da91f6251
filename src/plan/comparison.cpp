#include "plan/comparison.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/units.h"

namespace hawser::plan {
namespace {

using Line = std::vector<std::string>;

Line cells_of(const Compared& row, bool peak, bool steps, bool price) {
  Line cells{row.what};
  if (!row.forecast) return cells;
  const Forecast& forecast = *row.forecast;
  cells.push_back(format_bytes(Bytes(forecast.needed())));
  if (!forecast.fits()) return cells;
  cells.push_back(format_estimate(forecast.seconds));
  cells.push_back(format_count(forecast.tokens_per_second));
  if (peak) cells.push_back(utilization_text(row.cost));
  if (steps) cells.push_back(format_estimate(row.cost.seconds.value_or(0)));
  cells.push_back(hours_text(row.cost.rank_hours.value_or(row.cost.rank_hours_per_billion)));
  if (price) cells.push_back(price_text(row.cost.price.value_or(0)));
  return cells;
}

}  // namespace

std::string comparison_text(const std::string& what, const std::vector<Compared>& rows, const Target& target) {
  const auto any = [&](const auto& has) { return std::ranges::any_of(rows, has); };
  const bool peak = target.peak > 0, steps = any([](const Compared&row) { return row.cost.seconds.has_value(); }),
             price = any([](const Compared&row) { return row.cost.price.has_value(); });
  const std::string of = steps ? "" : " of 1B tokens";
  Line head{what, "memory", "step", "tokens/s"};
  if (peak) head.emplace_back("MFU");
  if (steps) head.emplace_back("time");
  head.push_back(cat(target.cuda ? "GPU-hours" : "rank-hours", of));
  if (price) head.push_back("price" + of);
  std::vector<Line> lines{head};
  for (const Compared& row : rows) lines.push_back(cells_of(row, peak, steps, price));
  std::vector<std::size_t> widths(head.size(), 0);
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (std::size_t r = 0; r < lines.size(); ++r) {
    std::string text;
    for (std::size_t i = 0; i < lines[r].size(); ++i) {
      const std::string gap(widths[i] - lines[r][i].size(), ' ');
      text += i == 0 ? cat("  ", lines[r][i], gap) : cat("  ", gap, lines[r][i]);
    }
    if (r > 0 && !rows[r - 1].forecast) text += "  " + rows[r - 1].problem;
    if (r > 0 && rows[r - 1].forecast && !rows[r - 1].forecast->fits()) {
      text += rows[r - 1].forecast->host_fits() ? "  does not fit" : "  does not fit in host memory";
    }
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string comparison_json(const std::string& what, const std::vector<Compared>& rows, const Target& target) {
  nlohmann::ordered_json out{
      {"target", target.name}, {"never_run", target.never_run}, {"plans", nlohmann::ordered_json::array()}};
  for (const Compared& row : rows) {
    nlohmann::ordered_json plan{{what, row.what}};
    if (row.forecast) {
      plan["fits"] = row.forecast->fits();
      plan["needed"] = row.forecast->needed();
      plan["seconds"] = row.forecast->seconds;
      plan["tokens_per_second"] = row.forecast->tokens_per_second;
      plan["cost"] = cost_json(row.cost);
    } else {
      plan["problem"] = row.problem;
    }
    out["plans"].push_back(std::move(plan));
  }
  return out.dump();
}

}  // namespace hawser::plan
