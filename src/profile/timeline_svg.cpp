#include "profile/timeline_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>

#include "base/cat.h"

namespace hawser::profile {

namespace {

constexpr double kWidth = 1200, kLabels = 130, kRight = 24, kLane = 20, kStrip = 18, kTop = 10;
constexpr double kLetter = 6.6;  // of 11 px text, upper bound of the average
constexpr std::size_t kNamedInstructions = 40;

struct Colour {
  const char* family;
  const char* colour;
};
constexpr Colour kColours[] = {{"gemm", "#4e79a7"},          {"attention", "#f28e2b"}, {"communication", "#d9534f"},
                               {"head and loss", "#b07aa1"}, {"norm", "#59a14f"},      {"activation", "#3aa6a0"},
                               {"rope", "#c9a227"},          {"adamw", "#9c755f"},     {"copies", "#6b8e9e"}};
constexpr char kOther[] = "#8a8a8a";

// A pass of a schedule: what a row of instructions shows where they are many.
struct PassColour {
  const char *instruction, *pass, *colour;
};
constexpr PassColour kPasses[] = {{"embed", "forward", "#4e79a7"},           {"forward", "forward", "#4e79a7"},
                                  {"loss gradient", "forward", "#4e79a7"},   {"loss", "forward", "#4e79a7"},
                                  {"recompute", "backward", "#f28e2b"},      {"backward", "backward", "#f28e2b"},
                                  {"embed backward", "backward", "#f28e2b"}, {"backward weight", "weights", "#59a14f"}};

// "forward block 3 mlp, micro-batch 2": the pass, "forward", its letter and micro-batch, "F2", and its colour.
struct PassOf {
  std::string pass, label;
  const char* colour = "none";
};
PassOf pass_of(const std::string& instruction) {
  const std::string of_micro_batch = ", micro-batch ";
  const std::size_t mb = instruction.find(of_micro_batch);
  const std::string op = instruction.substr(0, std::min(instruction.find(" block"), mb));
  const auto* found =
      std::find_if(std::begin(kPasses), std::end(kPasses), [&](const PassColour& p) { return op == p.instruction; });
  if (found == std::end(kPasses) || mb == std::string::npos) return {op, op};
  std::string label(1, static_cast<char>(std::toupper(static_cast<unsigned char>(found->pass[0]))));
  label += instruction.substr(mb + of_micro_batch.size());
  return {cat(found->pass, label), label, found->colour};
}

int colour_of(const TimelineSpan& span) {
  const std::string family = span.communication ? "communication" : span.family;
  const auto* found =
      std::find_if(std::begin(kColours), std::end(kColours), [&](const Colour& c) { return family == c.family; });
  return static_cast<int>(found - std::begin(kColours));
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

class Picture {
 public:
  Picture(std::int64_t origin, std::int64_t begin, std::int64_t end)
      : origin_(origin), begin_(begin), end_(std::max(end, begin + 1)) {}

  void add(const RankTimeline& rank, bool named) {
    if (named) text(4, y_ + 11.5, fmt::format("rank {}", rank.rank));
    add_rows(rank);
    for (int lane = 0; lane < static_cast<int>(rank.lanes.size()); ++lane) {
      const bool shown = std::any_of(rank.spans.begin(), rank.spans.end(), [&](const TimelineSpan& span) {
        return span.lane == lane && span.kind != TimelineSpan::Kind::host && visible(span.begin, span.end);
      });
      if (shown) add_lane(rank, lane);
    }
    y_ += 8;
  }

  std::string finish() {
    axis();
    legend();
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" "
               "height=\"{:.0f}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#767676\">\n",
               kWidth, y_, kWidth, y_) +
           body_ + "</svg>\n";
  }

 private:
  double x(std::int64_t time) const {
    const double share = static_cast<double>(time - begin_) / static_cast<double>(end_ - begin_);
    return kLabels + std::clamp(share, 0.0, 1.0) * (kWidth - kLabels - kRight);
  }
  bool visible(std::int64_t begin, std::int64_t end) const { return end > begin_ && begin < end_; }
  void text(double at, double y, const std::string& what, const char* anchor = "start") {
    body_ +=
        fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", at, y, anchor, escaped(what));
  }
  void bar(double from, double to, double y, double height, const std::string& style) {
    body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" {}/>\n", from, y,
                         std::max(to - from, 0.3), height, style);
  }

  // The compute stream's instructions: each by name if there are few, else its passes, "F2" of micro-batch 2.
  void add_rows(const RankTimeline& rank) {
    const auto found = std::find(rank.lanes.begin(), rank.lanes.end(), "compute");
    if (found == rank.lanes.end()) return;
    struct Named {
      std::string name;
      std::int64_t begin, end;
      std::string pass = {};
      const char* colour = "none";
    };
    std::vector<Named> instructions;
    for (const TimelineGroup& group : groups_by_instruction(rank)) {
      if (group.lane != found - rank.lanes.begin() || !visible(group.begin, group.end)) continue;
      instructions.push_back(
          {rank.instructions[static_cast<std::size_t>(rank.spans[group.first].instruction)], group.begin, group.end});
    }
    const bool by_pass = instructions.size() > kNamedInstructions;
    std::vector<Named> bars;
    for (Named& instruction : instructions) {
      const PassOf pass = pass_of(instruction.name);
      if (by_pass && !bars.empty() && bars.back().pass == pass.pass) {
        bars.back().end = instruction.end;
        continue;
      }
      instruction.pass = pass.pass;
      instruction.colour = pass.colour;
      if (by_pass) instruction.name = pass.label;
      bars.push_back(std::move(instruction));
    }
    for (const Named& one : bars) {
      const double from = x(one.begin), to = x(one.end);
      bar(from, to, y_, kStrip - 3,
          fmt::format("fill=\"{}\" fill-opacity=\"0.35\" stroke=\"#8a8a8a\" stroke-opacity=\"0.6\"", one.colour));
      if (to - from > kLetter * static_cast<double>(one.name.size()) + 2)
        text((from + to) / 2, y_ + 11.5, one.name, "middle");
    }
    y_ += kStrip;
  }

  void add_lane(const RankTimeline& rank, int lane) {
    text(kLabels - 6, y_ + 13, rank.lanes[static_cast<std::size_t>(lane)], "end");
    bar(kLabels, kWidth - kRight, y_, kLane - 4, "fill=\"#8a8a8a\" fill-opacity=\"0.12\"");
    // Adjacent bars of one colour less than a quarter of a pixel apart are merged.
    double from = 0, to = -1;
    int colour = -1;
    const auto flush = [&] {
      if (colour < 0) return;
      const bool other = colour == static_cast<int>(std::size(kColours));
      bar(from, to, y_, kLane - 4, fmt::format("fill=\"{}\"", other ? kOther : kColours[colour].colour));
    };
    for (const TimelineSpan& span : rank.spans) {
      if (span.lane != lane || span.kind == TimelineSpan::Kind::host || !visible(span.begin, span.end)) continue;
      const int its = colour_of(span);
      used_[its] = true;
      if (its == colour && x(span.begin) - to < 0.25) {
        to = x(span.end);
        continue;
      }
      flush();
      colour = its, from = x(span.begin), to = x(span.end);
    }
    flush();
    y_ += kLane;
  }

  void axis() {
    const double all = static_cast<double>(end_ - begin_) / 1e6, rough = all / 8;  // ms
    double step = std::pow(10.0, std::floor(std::log10(rough)));
    for (const double times : {5.0, 2.0}) {
      if (step * times <= rough) {
        step *= times;
        break;
      }
    }
    const double begin = static_cast<double>(begin_ - origin_) / 1e6;
    const auto first = static_cast<std::int64_t>(std::ceil(begin / step - 1e-9));
    const auto last = static_cast<std::int64_t>(std::floor((begin + all) / step + 1e-3));
    for (std::int64_t tick = first; tick <= last; ++tick) {
      const double at = static_cast<double>(tick) * step;
      const double here = x(origin_ + static_cast<std::int64_t>(at * 1e6));
      body_ += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#8a8a8a\" "
          "stroke-opacity=\"0.35\"/>\n",
          here, kTop, y_);
      text(here, y_ + 12, fmt::format("{:.6g} ms", at), "middle");
    }
    y_ += 22;
  }

  void legend() {
    double at = kLabels;
    for (std::size_t i = 0; i <= std::size(kColours); ++i) {
      if (!used_[i]) continue;
      const std::string name = i < std::size(kColours) ? kColours[i].family : "other";
      bar(at, at + 11, y_, 11, fmt::format("fill=\"{}\"", i < std::size(kColours) ? kColours[i].colour : kOther));
      text(at + 15, y_ + 10, name);
      at += 32 + kLetter * static_cast<double>(name.size());
    }
    y_ += 20;
  }

  std::int64_t origin_, begin_, end_;  // origin: time 0 of the axis
  std::string body_;
  double y_ = kTop;
  bool used_[std::size(kColours) + 1] = {};
};

}  // namespace

std::string to_svg(const std::vector<RankTimeline>& ranks, const SvgWindow& window) {
  std::int64_t begin = INT64_MAX, end = 0;
  for (const RankTimeline& rank : ranks) {
    for (const TimelineSpan& span : rank.spans) {
      if (span.kind == TimelineSpan::Kind::host) continue;
      begin = std::min(begin, span.begin), end = std::max(end, span.end);
    }
  }
  if (begin == INT64_MAX) begin = end = 0;
  const std::int64_t origin = begin;
  if (window.end_s > window.begin_s) {
    end = begin + static_cast<std::int64_t>(window.end_s * 1e9);
    begin += static_cast<std::int64_t>(window.begin_s * 1e9);
  }
  Picture picture(origin, begin, end);
  for (const RankTimeline& rank : ranks) picture.add(rank, /*named=*/ranks.size() > 1);
  return picture.finish();
}

}  // namespace hawser::profile
