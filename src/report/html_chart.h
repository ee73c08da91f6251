// Charts of report.html as inline SVG, in the page's colours for light and dark.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hawser::report {

// Escapes for text and for attributes in double quotes.
std::string html_escape(const std::string& text);

// A number by step, kept in at most kPoints buckets of equally many steps: mean, minimum and maximum of each bucket.
class Curve {
 public:
  static constexpr std::size_t kPoints = 600;
  struct Point {
    double step = 0, mean = 0, min = 0, max = 0;  // step: the last of the bucket
  };

  explicit Curve(std::string name, std::string unit = "") : name_(std::move(name)), unit_(std::move(unit)) {}
  void add(std::int64_t step, double value);  // steps increase; values that are not finite are counted and left out
  const std::string& name() const { return name_; }
  const std::string& unit() const { return unit_; }
  std::vector<Point> points() const;
  std::int64_t left_out() const { return left_out_; }

 private:
  struct Bucket {
    std::int64_t index = 0, last = 0, count = 0;
    double sum = 0, min = 0, max = 0;
  };
  static void merge(Bucket& into, const Bucket& from);

  std::string name_, unit_;
  std::int64_t width_ = 1;  // steps per bucket
  std::vector<Bucket> buckets_;
  std::int64_t left_out_ = 0;
};

// One chart of curves over steps, whose colours repeat after eight; "" if no curve has a point. The y axis is
// logarithmic if all values are positive and span more than a factor of 50. `resumes`: the steps after which the run
// was resumed, which are marked.
std::string chart(const std::string& title, const std::vector<const Curve*>& curves,
                  std::vector<std::int64_t> resumes = {});

// Parts of a total as one bar, with a table of name, value (as `text` prints it) and share. Largest first.
using PartText = std::string (*)(double);
std::string part_bar(const std::string& title, std::vector<std::pair<std::string, double>> parts, PartText text);

}  // namespace hawser::report
