// hawser generate: the command's body.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"
#include "base/text.h"
#include "cli/best.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/model_name.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "engine/output_place.h"
#include "generate/chat.h"
#include "io/result_file.h"
#include "launch/stop.h"
#include "models/families.h"

namespace hawser::cli {
namespace {

using generate::Answer;
using generate::Counts;
using generate::Generator;
using generate::Listener;
using generate::OpenGeneration;
using Json = nlohmann::ordered_json;

// Every rank of a run computes the answers; the first one writes them.
bool writes(const OpenGeneration& input) {
  return input.ranks.world == nullptr || input.ranks.world->rank().value() == 0;
}

// A model may generate any character; a terminal must not obey it. A pipe gets the text as it is.
void put(const std::string& text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const std::string shown = terminal ? printable(text, Newlines::keep) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void print_rates(const Counts& counts) {
  const auto part = [](const char* what, std::int64_t tokens, double rate) {
    char text[96];
    std::snprintf(text, sizeof text, "%s %s at %.1f tokens/s", what, plural(tokens, "token").c_str(), rate);
    return std::string(text);
  };
  std::string line = part("prompts", counts.prefill_tokens, counts.prefill_rate());
  // The first token of an answer comes from the pass over its prompt.
  const std::int64_t answered = counts.decode_tokens + counts.prompts;
  line += ", " + (counts.decode_tokens > 0 ? part("answers", answered, counts.decode_rate())
                                           : cat("answers ", plural(answered, "token")));
  print("", line);
}

Json answer_json(const OpenGeneration& input, const generate::Prompt& prompt, const Answer& answer, bool ids) {
  Json json;
  if (prompt.line) json["line"] = *prompt.line;
  if (prompt.line && !prompt.text.empty()) json["prompt"] = prompt.text;
  if (ids) json["prompt_ids"] = prompt.ids;
  if (ids || !input.tokenizer) json["ids"] = answer.ids;
  json["ended"] = answer.end != Answer::End::length;
  json["end"] = to_string(answer.end);
  if (input.tokenizer) json["text"] = answer.text;
  return json;
}

// Suggests conversations where a model with a chat template got texts. `empty`: all answers were.
void suggest_chat(const OpenGeneration& input, bool empty) {
  const auto is_text = [](const generate::Prompt& prompt) { return !prompt.text.empty() && !prompt.chat; };
  if (input.tokenizer == nullptr || !std::ranges::any_of(input.prompts, is_text)) return;
  Problems ignored;
  const std::string wanted = engine::chat_template_of(input.open);
  if (text::chat::open_chat_template(wanted, input.open.tokenizer, "", "", ignored) == nullptr) return;
  print("", cat(empty ? "the model answered nothing: " : "",
                "a text prompt does not apply the chat template that this model has; --chat and prompts with "
                "\"messages\" do"));
}

// The model ended its answer at once; a stop text was the user's wish.
bool is_empty(const Answer& answer) {
  return answer.ids.size() <= 1 && answer.end != Answer::End::text;
}

int run_one(OpenGeneration& input, bool as_json) {
  const bool first_rank = writes(input), as_text = input.tokenizer != nullptr && !as_json;
  const generate::Prompt& prompt = input.prompts[0];
  Generator generator(input);
  // The prompt is printed with the first token: after that nothing can be rejected.
  bool first = true;
  const auto show = [&](std::size_t, std::int32_t, const std::string& text) {
    if (!as_text || !first_rank) return;
    std::string before;
    if (std::exchange(first, false)) {
      const std::size_t whole = generate::whole_characters(*input.tokenizer, prompt.ids);
      before = input.tokenizer->decode(std::span(prompt.ids).first(whole), true);
    }
    put(before + text);
  };
  const Answer answer = generator.answer_all({.token = show, .answer = {}, .progress = {}})[0];
  if (!first_rank) return 0;
  if (as_text) {
    put("\n");
  } else if (as_json) {
    Json json = answer_json(input, prompt, answer, true);
    const Counts& counts = generator.counts();
    json["tokens_per_second"] = {{"prompt", counts.prefill_rate()}, {"answer", counts.decode_rate()}};
    put(line_of(json));
  } else {
    std::string line;
    for (const std::int32_t id : answer.ids) line += cat(line.empty() ? "" : ",", id);
    put(line + "\n");
  }
  if (const bool empty = is_empty(answer); empty || terminal_columns(STDERR_FILENO)) suggest_chat(input, empty);
  for (const std::string& note : generator.decoder().notes()) print("", note);
  if (as_text) print_rates(generator.counts());
  return 0;
}

// Prints progress from time to time.
class Progress {
 public:
  explicit Progress(std::size_t prompts) : prompts_(prompts) {}
  void operator()(const Counts& counts) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_report_ < std::chrono::seconds(10)) return;
    last_report_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const auto tokens = counts.decode_tokens + counts.prompts;
    print("", cat(counts.prompts, " of ", prompts_, " prompts answered, ", tokens, " tokens, ",
                  static_cast<std::int64_t>(static_cast<double>(tokens) / seconds), " tokens/s"));
  }

 private:
  std::size_t prompts_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_report_ = start_;
};

// All ranks stop after the same pass.
bool stop_requested_on_any(comm::World* world) {
  return world != nullptr ? world->any(stop_requested()) : stop_requested();
}

// Thrown between passes when the user interrupts.
struct Stopped {};

// Answers end in any order and are written in the order of the prompts to a file, or each at once to standard output.
class AnswerWriter {
 public:
  explicit AnswerWriter(const std::string& output) {
    if (!output.empty()) file_.emplace(output, io::ResultFile::Unfinished::kept_as_part);
  }

  bool to_file() const { return file_.has_value(); }
  void add(std::size_t i, std::string line) {
    waiting_[i] = std::move(line);
    for (auto it = waiting_.find(next_); it != waiting_.end(); it = waiting_.find(++next_)) {
      write(it->second);
      waiting_.erase(it);
    }
  }
  void commit() {
    if (file_) file_->commit();
  }
  // Writes the finished answers, also those after missing ones: a line names its prompt.
  int stop(std::size_t prompts) {
    for (const auto& [i, line] : waiting_) write(line);
    if (written_ == 0) {
      print("", "stopped before the first answer");
    } else {
      print("", cat("stopped: ", file_->keep_part(), " holds ", written_, " of ", prompts, " answers"));
    }
    return static_cast<int>(ExitCode::interrupted);
  }

 private:
  void write(const std::string& line) {
    ++written_;
    if (file_) {
      file_->write(line);
    } else {
      put(line);
    }
  }

  std::optional<io::ResultFile> file_;
  std::map<std::size_t, std::string> waiting_;
  std::size_t next_ = 0, written_ = 0;
};

int run_many(OpenGeneration& input, const GenerateOptions& options) {
  const bool first_rank = writes(input);
  AnswerWriter writer(first_rank ? options.output : "");
  Generator generator(input);
  const std::size_t prompts = input.prompts.size();
  bool empty = prompts > 0;
  const auto write = [&](std::size_t i, const Answer& answer) {
    empty = empty && is_empty(answer);
    if (first_rank) writer.add(i, line_of(answer_json(input, input.prompts[i], answer, options.common.json)));
  };
  const bool stops = !options.output.empty();
  Progress progress(prompts);
  const auto between_passes = [&](const Counts& counts) {
    if (first_rank) progress(counts);
    const bool done = counts.prompts == static_cast<std::int64_t>(prompts);
    if (stops && !done && stop_requested_on_any(input.ranks.world)) throw Stopped();
  };
  if (stops) catch_stop_signals(kEndedAnsweringLine);
  try {
    generator.answer_all({.token = {}, .answer = write, .progress = between_passes});
  } catch (const Stopped&) {
    return first_rank ? writer.stop(prompts) : static_cast<int>(ExitCode::interrupted);
  }
  if (!first_rank) return 0;
  writer.commit();
  if (empty) suggest_chat(input, empty);
  for (const std::string& note : generator.decoder().notes()) print("", note);
  print_rates(generator.counts());
  return 0;
}

constexpr const char* kChatHelp =
    "/reset clears the conversation\n"
    "/tool TEXT gives the result of a tool that the model has called\n"
    "/exit ends the chat\n"
    "/help lists the commands\n"
    "any other line is sent to the model; a line that begins with / too, after a space";

// The command of a line: "/" and a word of letters, or "". "/usr/bin" is none.
std::string command_of(const std::string& line) {
  const std::string word = line.substr(0, line.find_first_of(" \t"));
  const auto letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  const bool is_command = word.size() > 1 && word[0] == '/' && std::all_of(word.begin() + 1, word.end(), letter);
  return is_command ? word : "";
}

// Prints why an answer has no end.
void print_cut(const OpenGeneration& input, const Answer& answer) {
  if (answer.end != Answer::End::length) return;
  if (static_cast<std::int64_t>(answer.ids.size()) == input.max_tokens) {
    print("", cat("the answer was cut at ", input.max_tokens, " tokens; a larger --max-tokens allows more"));
  } else {
    print("", cat("the answer was cut: the conversation has ", input.size.positions,
                  " tokens; /reset clears it, a larger --context allows more"));
  }
}

int run_chat(OpenGeneration& input, const GenerateOptions& options, text::chat::Value tools) {
  Generator generator(input);
  generate::Chat chat(input, generator, options.system, std::move(tools));
  const bool typed = isatty(STDIN_FILENO) != 0;
  const bool person = typed && isatty(STDERR_FILENO) != 0;
  bool rejected = false;  // the last line
  if (person) print("", "/help lists the commands, /exit ends the chat");
  for (std::string line;;) {
    if (person) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    Problems problems;
    const auto answer_line = [&](const std::string& text, const char* role) {
      const auto answer = chat.send(text, put, problems, role);
      if (!answer) return;
      put("\n");
      print_cut(input, *answer);
    };
    const std::string command = command_of(line);
    if (command == "/exit") break;
    if (command == "/reset") {
      chat.reset();
    } else if (command == "/help") {
      print("", kChatHelp);
    } else if (command == "/tool" && line.size() > command.size()) {
      answer_line(line.substr(command.size() + 1), "tool");
    } else if (!command.empty()) {
      problems.add({.what = "unknown command " + command, .hint = "/help"});
    } else {
      answer_line(line.starts_with(" /") ? line.substr(1) : line, "user");
    }
    rejected = !problems.empty();
    if (rejected) print("", problems.lines());
  }
  if (generator.counts().prompts > 0) print_rates(generator.counts());
  // An interactive user has seen it; a script only gets the code.
  return static_cast<int>(rejected && !typed ? ExitCode::bad_input : ExitCode::done);
}

// Ranks have no standard input.
void check_input_of_ranks(const GenerateOptions& options, int world, Problems& problems) {
  if (world == 1) return;
  if (options.chat) {
    problems.add({.what = "a chat runs on one rank", .expected = "1", .got = cat(world), .at = "--ranks"});
  }
  if (options.prompts == "-") {
    problems.add(
        {.what = "prompts from standard input on several ranks", .expected = "a file", .got = "-", .at = "--prompts"});
  }
}

// What the user should know before the first answer. `model`: as it is opened.
void warn(const OpenGeneration& input, const std::string& model, const GenerateOptions& options) {
  if (!input.open.skipped.empty()) print("skipped: ", input.open.skipped.lines());
  const std::string better = better_than_last(model, options.best);
  if (!better.empty()) print("", better);
  std::string keys;
  for (const std::string& key : input.open.special.not_applied) keys += cat(keys.empty() ? "" : ", ", key);
  const auto answered = std::ranges::count_if(input.prompts, &generate::Prompt::answered);
  if (answered > 0) {
    print("",
          cat(plural(answered, "conversation"), answered == 1 ? " ends" : " end",
              " with an answer, and the model writes another one after it; leave the last message out to get one in "
              "its place"));
  }
  if (!keys.empty()) {
    print("warning: ",
          cat("generate does not apply ", keys, " of generation_config.json; transformers may choose other tokens"));
  }
  if (input.encoder->wrote_date()) print("", "the chat template writes the date of today");
  // One more token than the cache holds: the last one is not fed back.
  const std::string beyond =
      models::beyond_positions(input.open.model->description(), input.size.positions + (options.chat ? 0 : 1));
  if (!beyond.empty()) print("warning: ", beyond);
}

}  // namespace

int generate(const GenerateOptions& options) {
  Problems problems;
  Recipe base;
  base.model.path =
      chosen_checkpoint(find_model(options.model, options.common, hub::Parts::all), options.best, problems);
  CommonOptions common = options.common;
  const Problems unused = take_unused_keys(
      common, "generate", {"precision.compute", "memory.", "run.", "adapter.base", "adapter.double_quantization"},
      {{"model.path", "--model"},
       {"data.chat_template", "--chat-template"},
       {"parallel.tensor_parallel_degree", "--ranks"}});
  problems.add(unused);
  const Recipe recipe = recipe_without_file(base, common, /*runs=*/true, /*keep_relative=*/false, problems);
  const int world = world_size(common, std::max(1, recipe.run.ranks));
  check_input_of_ranks(options, world, problems);
  engine::RankDevice device;
  if (accepted(recipe, {"run.device"})) collect(problems, [&] { device = device_of(recipe, world); });
  problems.add(trains_only(recipe));
  engine::check_output(
      options.output, "--output",
      {{"--prompts", options.prompts}, {"--model", base.model.path}, {"--chat-template", options.chat_template}},
      problems);
  text::chat::Value tools;
  if (!options.tools.empty()) collect(problems, [&] { tools = generate::read_tools(options.tools); });
  const generate::GenerateRequest request{.model = base.model.path,
                                          .adapters = options.adapters,
                                          .averages = options.ema,
                                          .prompt = options.prompt,
                                          .prompt_ids = options.prompt_ids,
                                          .prompts = options.prompts,
                                          .chat = options.chat,
                                          .system = options.system,
                                          .chat_template = options.chat_template,
                                          .max_tokens = options.max_tokens,
                                          .batch = options.batch,
                                          .context = options.context,
                                          .sampling = {.temperature = options.temperature,
                                                       .top_k = options.top_k,
                                                       .top_p = options.top_p,
                                                       .seed = options.seed},
                                          .stops = options.stops,
                                          .recipe = recipe,
                                          .threads = threads_of(recipe),
                                          .device = device};
  std::optional<OpenGeneration> input;
  const auto check = [&](const RankPlace& place, Problems& found) {
    found.add(problems);
    if (options.prompts == "-" && place.ranks > 1) return;  // standard input is read once
    input = generate::open_generation(generate::on_ranks(request, place.rank, place.ranks, nullptr), found);
  };
  if (must_launch(world)) {
    Problems found;
    check({.rank = 0, .ranks = world}, found);
    found.throw_if_any();
    input.reset();  // every rank opens its own
    return launch_ranks({.ranks = world, .threads = recipe.run.threads, .saves = !options.output.empty()});
  }
  const auto run = [&](comm::World* ranks) {
    Problems found;
    const int rank = ranks != nullptr ? ranks->rank().value() : 0;
    if (ranks != nullptr) input = generate::open_generation(generate::on_ranks(request, rank, world, ranks), found);
    found.throw_if_any();
    if (rank == 0) warn(*input, base.model.path, options);
    if (options.chat) return run_chat(*input, options, std::move(tools));
    if (!options.prompts.empty()) return run_many(*input, options);
    return run_one(*input, options.common.json);
  };
  return run_on_ranks(world, recipe, {.check = check, .run = run});
}

}  // namespace hawser::cli
