#include "report/html_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace hawser::report {
namespace {

// In units of the SVG. The style sheet sets the size of text for the width at which a chart is shown.
constexpr double kWidth = 440, kHeight = 216;
constexpr double kMarginLeft = 66, kMarginRight = 12, kMarginTop = 10, kMarginBottom = 46;
constexpr double kLogFrom = 50;
constexpr std::size_t kNamedResumes = 3;
constexpr int kColours = 8;          // c0 to c7 of the style sheet
constexpr std::size_t kMarked = 40;  // a curve with at most this many points marks each

// 1, 2 or 5 times a power of ten, so that about `count` steps fill the range.
double nice_step(double range, int count) {
  const double raw = range / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (times * power >= raw * 0.999) return times * power;
  }
  return 10 * power;
}

std::string short_number(double value) {
  const double size = std::abs(value);
  if (size >= 1e4) return format_count(value);
  if (size != 0 && size < 1e-3) return fmt::format("{:.1e}", value);
  return fmt::format("{:.4g}", value);
}

// Maps values to coordinates of the chart.
struct Scale {
  double min = 0, max = 1, from = 0, to = 1;
  bool logarithmic = false;

  double at(double value) const {
    const double part = logarithmic ? std::log(value / min) / std::log(max / min) : (value - min) / (max - min);
    return from + part * (to - from);
  }
  std::vector<double> ticks(int count) const {
    std::vector<double> out;
    if (logarithmic) {
      double power = std::pow(10, std::ceil(std::log10(min) - 1e-9));
      while (power <= max * 1.001) {
        out.push_back(power);
        power *= 10;
      }
      if (out.size() >= 2) return out;
      out = {min, max};
      return out;
    }
    const double step = nice_step(max - min, count);
    double tick = std::ceil(min / step - 1e-9) * step;
    while (tick <= max + step * 1e-6) {
      out.push_back(std::abs(tick) < step * 1e-6 ? 0 : tick);
      tick += step;
    }
    return out;
  }
};

Scale y_scale(const std::vector<std::vector<Curve::Point>>& all) {
  double min = INFINITY, max = -INFINITY;
  for (const auto& points : all) {
    for (const Curve::Point& p : points) {
      min = std::min(min, p.min);
      max = std::max(max, p.max);
    }
  }
  Scale scale{.from = kHeight - kMarginBottom, .to = kMarginTop};
  scale.logarithmic = min > 0 && max > kLogFrom * min;
  if (min == max) {
    const double around = min == 0 ? 1 : std::abs(min) * 0.1;
    min -= around, max += around;
  } else if (!scale.logarithmic) {
    const double around = 0.04 * (max - min);
    // The axis does not go below zero unless a value does.
    min = min >= 0 ? std::max(0.0, min - around) : min - around;
    max += around;
  }
  scale.min = min, scale.max = max;
  return scale;
}

std::string axes(const Scale& x, const Scale& y) {
  std::string out;
  for (const double tick : y.ticks(5)) {
    const double at = y.at(tick);
    out += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", kMarginLeft,
                       kWidth - kMarginRight, at);
    out += fmt::format("<text class=\"tick\" text-anchor=\"end\" x=\"{}\" y=\"{:.1f}\" dy=\"0.35em\">{}</text>",
                       kMarginLeft - 6, at, short_number(tick));
  }
  for (const double tick : x.ticks(5)) {
    if (tick != std::floor(tick)) continue;  // steps are integers
    out += fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">{}</text>", x.at(tick),
                       kHeight - kMarginBottom + 18, short_number(tick));
  }
  out += fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">step</text>",
                     (kMarginLeft + kWidth - kMarginRight) / 2, kHeight - 6);
  return out + fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2}\" y2=\"{2}\"/>", kMarginLeft,
                           kWidth - kMarginRight, kHeight - kMarginBottom);
}

// A dotted line at each step after which the run was resumed.
std::string resume_lines(const std::vector<std::int64_t>& resumes, const Scale& x) {
  std::string out;
  for (const std::int64_t step : resumes) {
    out += fmt::format(
        "<line class=\"resume\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"><title>resumed after step "
        "{3}</title></line>",
        x.at(static_cast<double>(step)), kMarginTop, kHeight - kMarginBottom, step);
  }
  return out;
}

std::string resume_note(const std::vector<std::int64_t>& resumes) {
  if (resumes.size() > kNamedResumes) return fmt::format("dotted lines: {} resumes", resumes.size());
  return fmt::format("dotted: resumed after step {}", fmt::join(resumes, ", "));
}

std::string line(const Curve& curve, const std::vector<Curve::Point>& points, const Scale& x, const Scale& y,
                 std::size_t colour) {
  std::string mean, above, below, steps, values;
  bool band = false;
  for (const Curve::Point& p : points) {
    const double at = x.at(p.step);
    mean += fmt::format("{:.1f},{:.1f} ", at, y.at(p.mean));
    above += fmt::format("{:.1f},{:.1f} ", at, y.at(p.max));
    below.insert(0, fmt::format("{:.1f},{:.1f} ", at, y.at(p.min)));
    steps += fmt::format("{}{:.0f}", steps.empty() ? "" : " ", p.step);
    values += fmt::format("{}{:.5g}", values.empty() ? "" : " ", p.mean);
    band = band || p.min < p.max;
  }
  std::string out;
  if (band) out += fmt::format("<polygon class=\"band c{}\" points=\"{}\"/>", colour, above + below);
  out += fmt::format(
      "<polyline class=\"curve c{}\" points=\"{}\" data-name=\"{}\" data-unit=\"{}\" data-step=\"{}\" "
      "data-value=\"{}\"/>",
      colour, mean, html_escape(curve.name()), html_escape(curve.unit()), steps, values);
  if (points.size() > kMarked) return out;
  for (const Curve::Point& p : points) {
    out += fmt::format("<circle class=\"mark c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\"/>", colour, x.at(p.step),
                       y.at(p.mean));
  }
  return out;
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return out;
}

void Curve::merge(Bucket& into, const Bucket& from) {
  into.last = from.last;
  into.count += from.count;
  into.sum += from.sum;
  into.min = std::min(into.min, from.min);
  into.max = std::max(into.max, from.max);
}

void Curve::add(std::int64_t step, double value) {
  if (!std::isfinite(value)) {
    ++left_out_;
    return;
  }
  const Bucket one{(step - 1) / width_, step, 1, value, value, value};
  if (!buckets_.empty() && buckets_.back().index == one.index) {
    merge(buckets_.back(), one);
    return;
  }
  buckets_.push_back(one);
  while (buckets_.size() > kPoints) {
    width_ *= 2;
    std::vector<Bucket> wider;
    for (Bucket bucket : buckets_) {
      bucket.index /= 2;
      if (!wider.empty() && wider.back().index == bucket.index) {
        merge(wider.back(), bucket);
      } else {
        wider.push_back(bucket);
      }
    }
    buckets_ = std::move(wider);
  }
}

std::vector<Curve::Point> Curve::points() const {
  std::vector<Point> out;
  for (const Bucket& b : buckets_) {
    out.push_back({static_cast<double>(b.last), b.sum / static_cast<double>(b.count), b.min, b.max});
  }
  return out;
}

std::string chart(const std::string& title, const std::vector<const Curve*>& curves,
                  std::vector<std::int64_t> resumes) {
  std::vector<std::vector<Curve::Point>> all;
  Scale x{.min = INFINITY, .max = -INFINITY, .from = kMarginLeft, .to = kWidth - kMarginRight};
  std::int64_t left_out = 0;
  for (const Curve* curve : curves) {
    all.push_back(curve->points());
    left_out += curve->left_out();
    if (all.back().empty()) continue;
    x.min = std::min(x.min, all.back().front().step);
    x.max = std::max(x.max, all.back().back().step);
  }
  if (x.min > x.max) return "";
  if (x.min == x.max) x.min -= 1, x.max += 1;
  const Scale y = y_scale(all);
  std::string legend, lines;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    if (all[i].empty()) continue;
    const std::size_t colour = i % kColours;
    legend += fmt::format("<span class=\"entry\"><span class=\"key c{}\"></span>{}</span> ", colour,
                          html_escape(curves[i]->name()));
    lines += line(*curves[i], all[i], x, y, colour);
  }
  std::erase_if(resumes, [&](std::int64_t step) {
    return static_cast<double>(step) < x.min || static_cast<double>(step) > x.max;
  });
  std::vector<std::string> notes;
  if (y.logarithmic) notes.emplace_back("logarithmic scale");
  if (left_out > 0) notes.push_back(fmt::format("{} values are not finite", left_out));
  if (!resumes.empty()) notes.push_back(resume_note(resumes));
  const std::string note = fmt::format("{}", fmt::join(notes, "; "));
  return fmt::format(
      "<figure class=\"chart\"><figcaption><b>{}</b> {}<i>{}</i></figcaption>"
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">{}{}"
      "<line class=\"cursor\" y1=\"{}\" y2=\"{}\"/></svg><output></output></figure>\n",
      html_escape(title), curves.size() > 1 ? legend : "", note, kWidth, kHeight, html_escape(title), axes(x, y),
      resume_lines(resumes, x) + lines, kMarginTop, kHeight - kMarginBottom);
}

std::string part_bar(const std::string& title, std::vector<std::pair<std::string, double>> parts, PartText text) {
  std::erase_if(parts, [](const auto& part) { return !(part.second > 0); });
  std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return a.second > b.second; });
  double whole = 0;
  for (const auto& [name, size] : parts) whole += size;
  if (parts.empty()) return "";
  std::string bar, rows;
  double at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [name, size] = parts[i];
    const std::size_t colour = std::min<std::size_t>(i, kColours - 1);
    const double width = 1000 * size / whole;
    bar +=
        fmt::format("<rect class=\"part c{}\" x=\"{:.2f}\" width=\"{:.2f}\" height=\"28\"><title>{}: {}</title></rect>",
                    colour, at, std::max(width - 1.5, 0.5), html_escape(name), text(size));
    rows += fmt::format(
        "<tr><td><span class=\"key c{}\"></span>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1f} %</td></tr>",
        colour, html_escape(name), text(size), 100 * size / whole);
    at += width;
  }
  return fmt::format(
      "<figure><figcaption><b>{}</b></figcaption><svg class=\"bar\" viewBox=\"0 0 1000 28\" "
      "preserveAspectRatio=\"none\" "
      "role=\"img\" aria-label=\"{}\">{}</svg><table>{}<tr class=\"sum\"><td>total</td><td class=\"n\">{}</td>"
      "<td></td></tr></table></figure>\n",
      html_escape(title), html_escape(title), bar, rows, text(whole));
}

}  // namespace hawser::report
