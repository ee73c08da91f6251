#include "text/tokenizers/scanner.h"

#include <algorithm>
#include <map>
#include <string>

#include "text/tokenizers/scanner_parser.h"

namespace hawser::text {
namespace {

using Kind = PatternNode::Kind;

// A step of a nondeterministic automaton. The alternatives of a step are in order of preference.
struct Step {
  enum class Kind { set, look, either, match } kind;
  int set = -1;           // set, look: index of the set
  bool end = false;       // look: matches at the end of the text
  std::vector<int> next;  // either: in order of preference; others: one
};

constexpr std::size_t kMaxSteps = 4000, kMaxStates = 2000, kMaxClasses = 250;

}  // namespace

class ScannerBuilder {
 public:
  std::optional<Scanner> build(const PatternNode& pattern) {
    const int match = add({.kind = Step::Kind::match});
    start_ = compile(pattern, match);
    if (start_ < 0 || steps_.size() > kMaxSteps || !divide_characters() || !follow_all()) return std::nullopt;
    return std::move(out_);
  }

 private:
  using State = std::vector<int>;  // steps in order of preference, each once, without `either`

  int add(Step step) {
    if (steps_.size() > kMaxSteps) return -1;
    steps_.push_back(std::move(step));
    return static_cast<int>(steps_.size()) - 1;
  }

  int set_index(const CharacterSet& set) {
    sets_.push_back(set);
    return static_cast<int>(sets_.size()) - 1;
  }

  // Adds steps that match `node` and continue at `next`; returns the first, or -1 if there are too many.
  int compile(const PatternNode& node, int next) {
    if (next < 0) return -1;
    switch (node.kind) {
      case Kind::set:
        return add({.kind = Step::Kind::set, .set = set_index(node.set), .next = {next}});
      case Kind::look:
        return add({.kind = Step::Kind::look, .set = set_index(node.set), .end = node.end, .next = {next}});
      case Kind::sequence:
        for (auto child = node.children.rbegin(); child != node.children.rend() && next >= 0; ++child) {
          next = compile(*child, next);
        }
        return next;
      case Kind::either: {
        Step step{.kind = Step::Kind::either};
        for (const PatternNode& child : node.children) {
          step.next.push_back(compile(child, next));
          if (step.next.back() < 0) return -1;
        }
        return add(std::move(step));
      }
      case Kind::repeat:
        return repeat(node, next);
    }
    return -1;
  }

  int repeat(const PatternNode& node, int next) {
    const PatternNode& child = node.children[0];
    int at = next;
    if (node.max < 0) {
      const int loop = add({.kind = Step::Kind::either});
      if (loop < 0) return -1;
      const int body = compile(child, loop);
      if (body < 0) return -1;
      steps_[loop].next = {body, next};
      at = loop;
    } else {
      for (int i = node.min; i < node.max && at >= 0; ++i) {
        const int body = compile(child, at);
        at = body < 0 ? -1 : add({.kind = Step::Kind::either, .next = {body, next}});
      }
    }
    for (int i = 0; i < node.min && at >= 0; ++i) at = compile(child, at);
    return at;
  }

  // Divides characters into classes: two are in one class if every set contains both or neither.
  bool divide_characters() {
    std::vector<char32_t> cuts = {0, 0x110000};
    for (char32_t c = 0; c <= 0x80; ++c) cuts.push_back(c);
    for (const CharacterSet& set : sets_) {
      for (const auto& range : set.ranges()) {
        cuts.push_back(range.first);
        cuts.push_back(range.last + 1);
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<std::size_t> range_of(sets_.size());
    std::map<std::vector<bool>, int> classes;
    std::vector<std::uint8_t> class_of(0x110000);
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::vector<bool> members(sets_.size());
      for (std::size_t s = 0; s < sets_.size(); ++s) {
        const auto& ranges = sets_[s].ranges();
        std::size_t& r = range_of[s];
        while (r < ranges.size() && ranges[r].last < cuts[i]) ++r;
        members[s] = r < ranges.size() && ranges[r].first <= cuts[i];
      }
      const auto [found, fresh] = classes.emplace(std::move(members), classes.size());
      if (fresh) members_.push_back(found->first);
      if (classes.size() > kMaxClasses) return false;
      std::fill(class_of.begin() + cuts[i], class_of.begin() + cuts[i + 1], static_cast<std::uint8_t>(found->second));
    }
    std::copy_n(class_of.begin(), 128, out_.ascii_.begin());
    std::map<std::array<std::uint8_t, 256>, std::uint16_t> pages;
    for (std::size_t at = 0; at < class_of.size(); at += 256) {
      std::array<std::uint8_t, 256> page;
      std::copy_n(class_of.begin() + at, 256, page.begin());
      const auto [found, fresh] = pages.emplace(page, out_.pages_.size());
      if (fresh) out_.pages_.push_back(page);
      out_.page_.push_back(found->second);
    }
    out_.end_class_ = members_.size();
    out_.classes_ = members_.size() + 1;
    return true;
  }

  void close(int step, State& state, std::vector<bool>& seen) const {
    if (seen[step]) return;
    seen[step] = true;
    if (steps_[step].kind != Step::Kind::either) {
      state.push_back(step);
      return;
    }
    for (const int next : steps_[step].next) close(next, state, seen);
  }

  // Computes the state `to` after a character of class `kind` (or the end of the text). Returns true if a match ends
  // before it; `to` then has only the steps that are preferred to that match.
  bool go(const State& from, std::size_t kind, State& to) const {
    std::vector<bool> seen_to(steps_.size()), seen_here(steps_.size());
    for (const int step : from) seen_here[step] = true;
    State here = from;
    const bool end = kind == out_.end_class_;
    for (std::size_t i = 0; i < here.size(); ++i) {
      const Step& step = steps_[here[i]];
      if (step.kind == Step::Kind::match) return true;
      if (step.kind == Step::Kind::set) {
        if (!end && members_[kind][step.set]) close(step.next[0], to, seen_to);
      } else if (end ? step.end : members_[kind][step.set]) {
        // Inserts the steps after the lookahead here, before less preferred ones. A later step of the state may be
        // inserted again: its first position counts, and `to` gets no step twice.
        std::vector<bool> seen(steps_.size());
        State more;
        close(step.next[0], more, seen);
        std::erase_if(more,
                      [&](int s) { return std::find(here.begin(), here.begin() + i + 1, s) != here.begin() + i + 1; });
        here.insert(here.begin() + i + 1, more.begin(), more.end());
        if (here.size() > 4 * kMaxSteps) return false;
      }
    }
    return false;
  }

  bool follow_all() {
    std::map<State, int> numbers;
    std::vector<State> states;
    const auto number = [&](State state) {
      const auto [found, fresh] = numbers.emplace(std::move(state), states.size());
      if (fresh) states.push_back(found->first);
      return found->second;
    };
    State start;
    std::vector<bool> seen(steps_.size());
    close(start_, start, seen);
    number(std::move(start));
    for (std::size_t s = 0; s < states.size(); ++s) {
      if (states.size() > kMaxStates) return false;
      for (std::size_t kind = 0; kind < out_.classes_; ++kind) {
        State to;
        const bool match = go(states[s], kind, to);
        // `to` has no steps less preferred than a match: go() stopped there.
        const std::uint16_t next = to.empty() ? Scanner::kDead : static_cast<std::uint16_t>(number(std::move(to)));
        out_.table_.push_back(static_cast<std::uint16_t>(next | (match ? Scanner::kMatch : 0)));
      }
    }
    describe_states(states.size());
    return true;
  }

  void describe_states(std::size_t count) {
    const std::size_t classes = out_.classes_;
    out_.stay_.assign(count * 256, 0);
    for (std::size_t s = 0; s < count; ++s) {
      // match() skips the bytes that lead back to the state: those with kMatch or those without, whichever are more.
      const auto entry = [&](unsigned byte) { return out_.table_[s * classes + out_.ascii_[byte]]; };
      int with = 0, without = 0;
      for (unsigned byte = 0; byte < 128; ++byte) {
        if ((entry(byte) & (Scanner::kState | Scanner::kDead)) != s) continue;
        ++(entry(byte) & Scanner::kMatch ? with : without);
      }
      if (with + without == 0) continue;
      const bool matches = with >= without;
      for (unsigned byte = 0; byte < 128; ++byte) {
        out_.stay_[s * 256 + byte] = entry(byte) == (s | (matches ? Scanner::kMatch : 0));
      }
      out_.stay_[s * 256 + 255] = matches ? 2 : 1;
    }
    describe_run(count);
    // From the first character: whether a match can start, and whether one always does.
    out_.total_ = true;
    bool some = false;
    for (std::size_t kind = 0; kind < classes; ++kind) {
      const std::uint16_t first = out_.table_[kind];
      out_.matches_empty_ |= (first & Scanner::kMatch) != 0;
      if (kind == out_.end_class_) continue;
      const bool dead = (first & (Scanner::kDead | Scanner::kMatch)) == Scanner::kDead;
      some |= !dead;
      out_.total_ &= !dead && matches_at_once(first & Scanner::kState);
      for (unsigned byte = 0; byte < 128; ++byte) {
        if (out_.ascii_[byte] == kind) out_.starts_[byte] = !dead;
      }
    }
    out_.total_ &= !out_.matches_empty_;
    for (unsigned byte = 128; byte < 256; ++byte) out_.starts_[byte] = some;
  }

  // Finds the state with a run that most ASCII bytes stay in or lead to.
  void describe_run(std::size_t count) {
    int best = 0;
    for (std::size_t s = 1; s < count; ++s) {
      CommonRun run;
      if (out_.stay_[s * 256 + 255] != 2 || !describe_range(s, run)) continue;
      int leads = 0;
      for (unsigned byte = 0; byte < 256; ++byte) {
        run.lead[byte] = byte < 128 ? lead_of(byte, s, run) : CommonRun::kNoLead;
        leads += run.lead[byte] <= 1;
        run.ends[byte] = byte < 128 && entry(s, byte) == (Scanner::kDead | Scanner::kMatch);
      }
      if (leads <= best) continue;
      best = leads;
      out_.run_ = run;
    }
  }

  // Describes the bytes that stay in state `s` as one range, or as one range of letters in both cases. False: neither.
  bool describe_range(std::size_t s, CommonRun& run) const {
    const auto stays = [&](unsigned byte) { return byte < 128 && out_.stay_[s * 256 + byte] != 0; };
    for (const std::uint8_t fold : {0, 0x20}) {
      unsigned first = 0;
      while (first < 128 && !(stays(first) && (first & fold) == fold)) ++first;
      run = {.fold = fold, .first = static_cast<std::uint8_t>(first)};
      while (stays(first + run.count)) ++run.count;
      bool exact = run.count > 0;
      for (unsigned byte = 0; byte < 256; ++byte) exact &= run.has(static_cast<std::uint8_t>(byte)) == stays(byte);
      if (exact) return true;
    }
    return false;
  }

  // CommonRun::lead of this byte for the run of state `s`.
  std::uint8_t lead_of(unsigned byte, std::size_t s, const CommonRun& run) const {
    const std::uint16_t start = entry(0, byte);
    if (start & (Scanner::kDead | Scanner::kMatch)) return CommonRun::kNoLead;
    if (run.has(static_cast<std::uint8_t>(byte))) return start == s ? 0 : CommonRun::kNoLead;
    for (unsigned next = 0; next < 128; ++next) {
      const bool leads = (entry(start & Scanner::kState, next) & (Scanner::kState | Scanner::kDead)) == s;
      if (run.has(static_cast<std::uint8_t>(next)) && !leads) return CommonRun::kNoLead;
    }
    return 1;
  }

  std::uint16_t entry(std::size_t state, unsigned ascii) const {
    return out_.table_[state * out_.classes_ + out_.ascii_[ascii]];
  }

  // Whether a match ends at this state for every next character.
  bool matches_at_once(std::size_t state) const {
    for (std::size_t kind = 0; kind < out_.classes_; ++kind) {
      if (!(out_.table_[state * out_.classes_ + kind] & Scanner::kMatch)) return false;
    }
    return true;
  }

  std::vector<Step> steps_;
  std::vector<CharacterSet> sets_;
  std::vector<std::vector<bool>> members_;  // by class: which sets it belongs to
  int start_ = -1;
  Scanner out_;
};

std::optional<Scanner> Scanner::compile(std::string_view pattern) {
  const auto tree = parse_pattern(pattern);
  return tree ? ScannerBuilder().build(*tree) : std::nullopt;
}

}  // namespace hawser::text
