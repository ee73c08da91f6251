#include "harness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <list>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/testing/test_paths.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "checkpoint/storage/posix_storage.h"
#include "io/files.h"

namespace hawser::faults {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kVocabulary = 61;
constexpr const char* kTag = "HAWSER_TEST_RUN";
constexpr const char* kModel = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "vocab_size": 61, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": true, "hidden_act": "silu", "initializer_range": 0.05, "bos_token_id": null,
  "eos_token_id": 0})";
constexpr const char* kRecipe = R"(name: faults
model: {config: model.json}
data: {train: [train.jsonl], validation: [valid.jsonl], sequence_length: 64, max_documents: 16}
train: {steps: 300, global_batch_size: 4, seed: 7}
optimizer: {learning_rate: 3.0e-3, warmup_steps: 5}
precision: {compute: float32}
checkpoint: {every_steps: 5, keep_last: 2}
run: {threads: 1, collective_timeout_s: 30}
output: out
)";

// Counting upwards from random starts, with some noise: learnable, but not at once.
std::string documents(int count, unsigned seed) {
  constexpr int kLengths[] = {3, 5, 7, 11, 17, 29, 41, 53, 77};
  std::mt19937 random(seed);
  std::string text;
  for (int d = 0; d < count; ++d) {
    nlohmann::json ids = nlohmann::json::array();
    unsigned id = random();
    for (int i = kLengths[random() % std::size(kLengths)]; i > 0; --i) {
      id = random() % 10 == 0 ? random() : id + 3;
      ids.push_back(id % kVocabulary);
    }
    text += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
  }
  return text;
}

constexpr double kUsualStart = 0.8;  // seconds that a run of one step on two ranks takes

bool becomes_true(const std::function<bool()>& condition, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  return true;
}

// Parent and state of a process; (0, 'X') if it ended.
std::pair<pid_t, char> status_of(pid_t pid) {
  const std::string text = read_file(cat("/proc/", pid, "/stat"));
  const auto end = text.rfind(") ");
  if (end == std::string::npos) return {0, 'X'};
  return {static_cast<pid_t>(std::stol(text.substr(end + 4))), text[end + 2]};
}

}  // namespace

Workplace::Workplace() {
  folder_.write("model.json", kModel);
  folder_.write("train.jsonl", documents(200, 1));
  folder_.write("valid.jsonl", documents(12, 2));
  folder_.write("recipe.yaml", kRecipe);
}

std::vector<std::string> Ended::lines() const {
  std::vector<std::string> out_lines;
  std::istringstream in(err);
  for (std::string line; std::getline(in, line);) {
    const bool busy_machine = line.find(": slow steps: ") != std::string::npos;
    if (line.starts_with("hawser: ") && !busy_machine) out_lines.push_back(line);
  }
  return out_lines;
}

Fit::Fit(const Workplace& place, const std::vector<std::string>& words, rlim_t largest_file) {
  std::vector<std::string> command = {"fit", "recipe.yaml"};
  for (const std::string& word : words) {
    if (word.find('=') != std::string::npos) command.push_back("--set");
    command.push_back(word);
  }
  start(place, std::move(command), largest_file, false);
}

Fit::Fit(const Workplace& place, const Command& command) {
  start(place, command.words, RLIM_INFINITY, command.terminal);
}

void Fit::start(const Workplace& place, std::vector<std::string> words, rlim_t largest_file, bool terminal) {
  static int runs = 0;
  log_ = place.folder() / cat("run-", ++runs);
  tag_ = cat(kTag, "=", getpid(), "-", runs);
  words.insert(words.begin(), testing::kHawser);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string out = log_.string() + ".out", err = log_.string() + ".err";
  pid_ = terminal ? forkpty(&terminal_, nullptr, nullptr, nullptr) : fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ > 0) {
    if (terminal) fcntl(terminal_, F_SETFL, O_NONBLOCK);
    return;
  }
  putenv(tag_.data());
  const rlimit limit{largest_file, largest_file};
  if (largest_file != RLIM_INFINITY) setrlimit(RLIMIT_FSIZE, &limit);
  if (chdir(place.folder().c_str()) != 0) _exit(98);
  if (!terminal) {
    dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
  }
  execv(arguments[0], arguments.data());
  _exit(99);
}

Fit::~Fit() {
  if (pid_ > 0) {
    kill_all();
    waitpid(pid_, nullptr, 0);
  }
  kill_at_once(left());
  if (terminal_ >= 0) close(terminal_);
}

std::vector<pid_t> Fit::left() const {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    if (('\0' + read_file(cat("/proc/", pid, "/environ"))).find('\0' + tag_ + '\0') == std::string::npos) continue;
    const char state = status_of(pid).second;
    if (state != 'X' && state != 'Z') found.push_back(pid);
  }
  return found;
}

void Fit::type(const std::string& keys) {
  if (::write(terminal_, keys.data(), keys.size()) < 0) throw std::runtime_error("the terminal is gone");
}

void Fit::read_terminal() const {
  std::array<char, 4096> bytes{};
  for (ssize_t size = 0; (size = ::read(terminal_, bytes.data(), bytes.size())) > 0;)
    typed_out_.append(bytes.data(), static_cast<std::size_t>(size));
}

std::vector<pid_t> Fit::all() const {
  std::vector<pid_t> found = {pid_};
  std::multimap<pid_t, pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    const auto [parent, state] = status_of(pid);
    if (state != 'X' && state != 'Z') children.emplace(parent, pid);
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  return found;
}

std::map<int, pid_t> Fit::ranks() const {
  constexpr const char* kRank = "OMPI_COMM_WORLD_RANK=";
  std::map<int, pid_t> found;
  for (const pid_t pid : all()) {
    std::istringstream environment(read_file(cat("/proc/", pid, "/environ")));
    for (std::string variable; std::getline(environment, variable, '\0');) {
      if (variable.starts_with(kRank)) found[std::stoi(variable.substr(std::strlen(kRank)))] = pid;
    }
  }
  if (found.empty()) found[0] = pid_;
  return found;
}

pid_t Fit::rank(int rank) const {
  const auto running = ranks();
  const auto found = running.find(rank);
  if (found == running.end()) throw std::runtime_error(cat("rank ", rank, " does not run: ", err()));
  return found->second;
}

void Fit::kill_all() const {
  kill_at_once(all());
}

void kill_at_once(const std::vector<pid_t>& pids) {
  for (auto pid = pids.rbegin(); pid != pids.rend(); ++pid) kill(*pid, SIGKILL);
}

bool Fit::going() const {
  if (terminal_ >= 0) read_terminal();  // else it would wait for its reader
  return status_of(pid_).second != 'Z' && status_of(pid_).second != 'X';
}

Ended Fit::wait(double seconds) {
  return wait_at_most(patient(seconds));
}

Ended Fit::wait_at_most(double seconds) {
  const auto begin = Clock::now();
  if (!becomes_true([&] { return !going(); }, seconds)) kill_all();
  Ended ended;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  ended.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  ended.out = read_file(log_.string() + ".out");
  ended.err = err();
  return ended;
}

std::string Fit::err() const {
  if (terminal_ >= 0) {
    read_terminal();
    return typed_out_;
  }
  return read_file(log_.string() + ".err");
}

Ended run(const Workplace& place, const std::vector<std::string>& words, rlim_t largest_file) {
  return Fit(place, words, largest_file).wait();
}

void flip(const fs::path& path, std::uintmax_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto place = static_cast<std::streamoff>(at);
  file.seekg(place);
  const int byte = file.get();
  file.seekp(place);
  file.put(static_cast<char>(byte ^ 0x40));
  ASSERT_TRUE(file.good()) << path;
}

double patient(double seconds) {
  static const double slowness = [] {
    const Workplace place;
    const auto begin = Clock::now();
    const Ended ended = Fit(place, {"--ranks", "2", "train.steps=1", "optimizer.warmup_steps=0"}).wait_at_most();
    if (ended.code != 0) throw std::runtime_error(cat("a run of one step failed: ", ended.err));
    return std::chrono::duration<double>(Clock::now() - begin).count() / kUsualStart;
  }();
  return seconds * std::clamp(slowness, 1.0, 4.0);
}

namespace {

// Measures before the first test, not between two lines of one.
class MeasureStart : public ::testing::Environment {
  void SetUp() override { patient(0); }
};
const auto* const kMeasureStart = ::testing::AddGlobalTestEnvironment(new MeasureStart);

}  // namespace

bool eventually(const std::function<bool()>& condition, double seconds) {
  return becomes_true(condition, patient(seconds));
}

std::int64_t newest_step(const fs::path& out) {
  const auto folders = checkpoint::step_folders((out / "checkpoints").string());
  return folders.empty() ? 0 : std::stoll(folders.front().substr(folders.front().rfind('-') + 1));
}

bool saving(const fs::path& out) {
  const auto names = io::list_folder((out / "checkpoints").string());
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return checkpoint::leftover_kind(name) == checkpoint::Leftover::temporary;
  });
}

std::map<std::string, std::vector<std::byte>> tensors(const fs::path& folder) {
  auto opened = checkpoint::Checkpoint::open(folder.string());
  std::map<std::string, std::vector<std::byte>> out;
  std::vector<NamedState> wanted;
  for (const checkpoint::SavedTensor& tensor : opened.tensors()) {
    auto& bytes = out[tensor.name];
    bytes.resize(static_cast<std::size_t>(tensor.shape.elements() * size_of(tensor.dtype)));
    Shape origin = tensor.shape;
    for (int dim = 0; dim < origin.rank(); ++dim) origin[dim] = 0;
    wanted.push_back({tensor.name,
                      tensor.shape,
                      tensor.dtype,
                      {{origin, tensor.shape, TensorView(bytes.data(), tensor.dtype, tensor.shape, DeviceKind::cpu)}}});
  }
  opened.read(wanted);
  return out;
}

std::int64_t verified_step(const fs::path& out) {
  Problems skipped, corrupt;
  auto newest = checkpoint::Checkpoint::latest((out / "checkpoints").string(), skipped);
  if (!newest) throw std::runtime_error("no complete checkpoint in " + out.string() + ": " + skipped.lines());
  newest->verify(corrupt);
  corrupt.throw_if_any();
  return newest->step();
}

std::vector<Step> metrics(const fs::path& out) {
  std::vector<Step> steps;
  std::ifstream in(out / "metrics.jsonl");
  for (std::string line; std::getline(in, line) && !in.eof();) {  // eof: a line without a newline
    const auto json = nlohmann::json::parse(line);
    const auto number = [&](const char* key) { return json[key].is_null() ? -1.0 : json[key].get<double>(); };
    steps.push_back({.step = json["step"],
                     .sequences = json["data_position"]["sequences"],
                     .loss = number("loss"),  // null: the step had no target token
                     .grad_norm = number("grad_norm"),
                     .lr = json["lr"],
                     .validation_loss = json.value("validation_loss", -1.0)});
  }
  return steps;
}

std::ostream& operator<<(std::ostream& out, const Step& step) {
  return out << "step " << step.step << ", loss " << std::hexfloat << step.loss << ", gradient " << step.grad_norm
             << ", validation " << step.validation_loss << std::defaultfloat;
}

void expect_equal_runs(const fs::path& a, const fs::path& b, std::int64_t last) {
  const std::vector<Step> of_a = metrics(a), of_b = metrics(b);
  ASSERT_EQ(static_cast<std::int64_t>(of_a.size()), last);
  ASSERT_EQ(of_a.size(), of_b.size());
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    ASSERT_EQ(of_a[i].step, static_cast<std::int64_t>(i) + 1);
    ASSERT_EQ(of_a[i], of_b[i]);
  }
  const std::string name = "checkpoints/" + checkpoint::step_name(last);
  const auto held_a = tensors(a / name), held_b = tensors(b / name);
  ASSERT_FALSE(held_a.empty());
  ASSERT_EQ(held_a.size(), held_b.size());
  for (const auto& [tensor, bytes] : held_a)
    EXPECT_TRUE(held_b.contains(tensor) && held_b.at(tensor) == bytes) << tensor;
}

}  // namespace hawser::faults
