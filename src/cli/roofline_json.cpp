#include "cli/roofline_json.h"

#include <fmt/format.h>

namespace hawser::cli {

namespace {

nlohmann::ordered_json ceiling(double seconds, const std::string& problem, double step_seconds) {
  if (!problem.empty()) return {{"problem", problem}};
  return {{"seconds", seconds}, {"ratio", seconds / step_seconds}};
}

std::string line(const char* name, double seconds, const std::string& problem, double step_seconds,
                 const std::string& what) {
  if (!problem.empty()) return fmt::format("  {:<8} unknown: {}\n", name, problem);
  return fmt::format("  {:<8}{:>9.1f} ms  {:.3f} of the step  {}\n", name, 1e3 * seconds, seconds / step_seconds, what);
}

std::string term_line(const profile::RooflineTerm& term) {
  const double unit = term.bytes ? 1e9 : 1e12;
  return fmt::format("  {:<58} {:>5.0f} x {:>9.3f} {:>9.3f} ms  {:>7.1f} {:>7.1f} {}\n", term.what, term.count,
                     1e3 * term.burst, 1e3 * term.alone, term.work / term.burst / unit, term.work / term.alone / unit,
                     term.bytes ? "GB/s" : "TFLOP/s");
}

}  // namespace

nlohmann::ordered_json roofline_json(const profile::Roofline& roofline, const profile::StepMix& mix,
                                     double step_seconds) {
  nlohmann::ordered_json json;
  if (roofline.problem.empty()) {
    for (const profile::RooflineTerm& term : roofline.terms) {
      const char* const rate = term.bytes ? "bytes_per_second" : "flops_per_second";
      json["terms"].push_back({{"what", term.what},
                               {"count", term.count},
                               {"burst", {{"seconds_each", term.burst}, {rate, term.work / term.burst}}},
                               {"alone", {{"seconds_each", term.alone}, {rate, term.work / term.alone}}}});
    }
  }
  json["burst"] = ceiling(roofline.burst_seconds(), roofline.problem, step_seconds);
  json["alone"] = ceiling(roofline.alone_seconds(), roofline.problem, step_seconds);
  json["mix"] = ceiling(mix.seconds, mix.problem, step_seconds);
  if (!mix.problem.empty()) return json;
  json["mix"]["blocks"] = mix.blocks;
  if (mix.power.watts) json["mix"]["watts"] = *mix.power.watts;
  if (mix.power.sm_clock_mhz) json["mix"]["sm_clock_mhz"] = *mix.power.sm_clock_mhz;
  return json;
}

std::string roofline_text(const profile::Roofline& roofline, const profile::StepMix& mix, double step_seconds) {
  std::string out = "\nceilings of this rank's step\n";
  if (roofline.problem.empty()) {
    out += fmt::format("  {:<58} {:>5}   {:>9} {:>12}  {:>7} {:>7}\n", "", "count", "burst", "alone", "burst", "alone");
    for (const profile::RooflineTerm& term : roofline.terms) out += term_line(term);
  }
  std::string of_mix = fmt::format("its ops in their own mix, {} blocks on one GPU without communication", mix.blocks);
  if (mix.power.watts && mix.power.sm_clock_mhz)
    of_mix += fmt::format("; {:.0f} W, {:.0f} MHz", *mix.power.watts, *mix.power.sm_clock_mhz);
  out += line("R_burst", roofline.burst_seconds(), roofline.problem, step_seconds,
              "each term alone for 0.1 s, no recompute, communication hidden");
  out += line("R_alone", roofline.alone_seconds(), roofline.problem, step_seconds, "each term alone for 1 s");
  out += line("R_mix", mix.seconds, mix.problem, step_seconds, of_mix);
  return out + fmt::format("  {:<8}{:>9.1f} ms\n", "step", 1e3 * step_seconds);
}

}  // namespace hawser::cli
