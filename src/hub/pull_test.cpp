// Pulls from a local server: what is requested, what the cache has then, and what goes wrong on the way.
#include "hub/pull.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "hub/file_names.h"
#include "hub/testing/hub_server.h"

namespace hawser::hub {
namespace pull_test {

namespace fs = std::filesystem;
using nlohmann::json;

// Bytes that differ everywhere, so that a part at a wrong place has another checksum.
std::string large(std::size_t bytes, unsigned seed = 1) {
  std::string out;
  for (unsigned state = seed; out.size() < bytes;) {
    state = state * 1664525u + 1013904223u;
    out += static_cast<char>(state >> 24);
  }
  return out;
}

class Pull : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 300'000;

  void SetUp() override {
    add("config.json", "{\"model_type\": \"llama\"}");
    add("tokenizer.json", large(5000, 2));
    add("model.safetensors", weights_);
    add("pytorch_model.bin", large(2000, 3));
    add("onnx/model.onnx", large(2000, 4));
    add("README.md", "# A model");
  }

  void add(const std::string& file, const std::string& content) { server_.add("models/org/tiny/" + file, content); }

  PullRequest request(const std::string& name = "org/tiny") const {
    return {.settings = {.endpoint = server_.url(),
                         .token = "secret",
                         .token_place = "HF_TOKEN",
                         .cache = folder_.path("hub"),
                         .stalled = std::chrono::seconds(1)},
            .repo = {.name = *parse_hub_name(name)}};
  }
  static PullRequest data(PullRequest request) {
    request.repo.kind = RepoKind::dataset;
    return request;
  }

  // The lines of the error; "" if there is none.
  static std::string error_of(const PullRequest& request) {
    try {
      pull(request);
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  }

  static std::string names(const Pulled& pulled, bool only_transferred = false) {
    std::string out;
    for (const PulledFile& file : pulled.files) {
      if (file.transferred || !only_transferred) out += (out.empty() ? "" : " ") + file.name;
    }
    return out;
  }

  std::string blob_of_weights() const {
    return fs::canonical(fs::path(pull(request()).folder) / "model.safetensors").string();
  }
  // Requests for the content of the weights.
  std::vector<json> transfers() const { return server_.requests("model.safetensors?"); }

  HubServer server_;
  TemporaryFolder folder_;
  const std::string weights_ = large(kBytes);
};

TEST_F(Pull, GetsWhatIsReadAndNothingTwice) {
  const Pulled first = pull(request());
  EXPECT_EQ(names(first, true), "config.json model.safetensors tokenizer.json");
  EXPECT_EQ(first.received, static_cast<std::int64_t>(kBytes + 5000 + 23));
  EXPECT_EQ(read_file(first.folder + "/model.safetensors"), weights_);
  EXPECT_EQ(first.folder, folder_.path("hub/models--org--tiny/snapshots/" + first.commit));
  EXPECT_EQ(folder_.read("hub/models--org--tiny/refs/main"), first.commit);
  EXPECT_EQ(server_.requests().size(), 1u + 3 + 2) << "the list, three files, two of them at another server";

  server_.forget();
  const Pulled second = pull(request());
  EXPECT_EQ(names(second), "config.json model.safetensors tokenizer.json");
  EXPECT_EQ(names(second, true), "");
  EXPECT_EQ(second.received, 0);
  EXPECT_EQ(server_.requests().size(), 1u);

  // A new commit shares the files that it has not changed.
  add("config.json", "{}");
  const Pulled third = pull(request());
  EXPECT_NE(third.commit, first.commit);
  EXPECT_EQ(names(third, true), "config.json");
  EXPECT_EQ(read_file(first.folder + "/config.json"), "{\"model_type\": \"llama\"}");
}

TEST_F(Pull, WritesTheLayoutOfHuggingfaceHub) {
  add("additional_chat_templates/tools.jinja", "{{ messages }}");
  const Pulled pulled = pull(request());
  const fs::path repo = folder_ / "hub/models--org--tiny", snapshot = pulled.folder;
  // Named by sha256sum and by git hash-object.
  EXPECT_EQ(fs::read_symlink(snapshot / "tokenizer.json").parent_path(), "../../blobs");
  EXPECT_EQ(fs::read_symlink(snapshot / "tokenizer.json").filename().string().size(), 64u);
  EXPECT_EQ(fs::read_symlink(snapshot / "config.json"), "../../blobs/230d5f4da0da586aad26ead694ea67cd15bd6df1");
  EXPECT_EQ(fs::read_symlink(snapshot / "additional_chat_templates/tools.jinja").parent_path(), "../../../blobs");
  EXPECT_TRUE(fs::exists(folder_ / "hub/.locks/models--org--tiny" /
                         (fs::read_symlink(snapshot / "config.json").filename().string() + ".lock")));
  for (const auto& blob : fs::directory_iterator(repo / "blobs")) EXPECT_NE(blob.path().extension(), ".incomplete");
}

TEST_F(Pull, SendsTheTokenToTheHubOnly) {
  server_.rules({{"private", {"org/tiny"}}, {"renamed", {{"org/old", "org/tiny"}}}});
  EXPECT_EQ(names(pull(request("org/old"))), "config.json model.safetensors tokenizer.json");
  int others = 0;
  for (const json& request : server_.requests()) {
    const bool hub = request["server"] == "hub";
    others += hub ? 0 : 1;
    EXPECT_EQ(request["authorization"], hub ? json("Bearer secret") : json()) << request;
  }
  EXPECT_EQ(others, 2);
  EXPECT_FALSE(server_.requests("/org/old/resolve/").empty()) << "a relative redirect keeps the token";
}

TEST_F(Pull, ContinuesABrokenTransfer) {
  server_.rules({{"cut", {{"model.safetensors", {100'000, 50'000}}}}});
  EXPECT_EQ(read_file(pull(request()).folder + "/model.safetensors"), weights_);
  const auto sent = transfers();
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0]["range"], json());
  // A reset may drop the last bytes that were sent.
  const auto begin = [&](std::size_t i) { return std::stoul(sent[i]["range"].get<std::string>().substr(6)); };
  EXPECT_GT(begin(1), 0u);
  EXPECT_LE(begin(1), 100'000u);
  EXPECT_GE(begin(2), begin(1));
  EXPECT_LE(begin(2), 150'000u);
}

// As some proxies do: the length of the response is that of what they have.
TEST_F(Pull, ContinuesAfterAShortResponse) {
  server_.rules({{"short", {{"model.safetensors", {100'000}}}}});
  EXPECT_EQ(read_file(pull(request()).folder + "/model.safetensors"), weights_);
  ASSERT_EQ(transfers().size(), 2u);
  EXPECT_EQ(transfers()[1]["range"], "bytes=100000-");
}

TEST_F(Pull, ContinuesWhatAnEarlierPullLeft) {
  const std::string blob = blob_of_weights();
  fs::rename(blob, blob + ".incomplete");
  fs::resize_file(blob + ".incomplete", 123'456);
  server_.forget();
  const Pulled pulled = pull(request());
  EXPECT_EQ(read_file(blob), weights_);
  EXPECT_EQ(pulled.received, static_cast<std::int64_t>(kBytes - 123'456));
  ASSERT_EQ(transfers().size(), 1u);
  EXPECT_EQ(transfers()[0]["range"], "bytes=123456-");

  // All of it: nothing is transferred.
  fs::rename(blob, blob + ".incomplete");
  server_.forget();
  EXPECT_EQ(pull(request()).received, 0);
  EXPECT_EQ(read_file(blob), weights_);
  EXPECT_TRUE(transfers().empty());

  // Longer than the file: another file's.
  fs::remove(blob);
  std::ofstream(blob + ".incomplete") << weights_ << "more";
  EXPECT_EQ(pull(request()).received, static_cast<std::int64_t>(kBytes));
  EXPECT_EQ(read_file(blob), weights_);
}

TEST_F(Pull, StartsAgainIfTheServerIgnoresRanges) {
  server_.rules({{"cut", {{"model.safetensors", {100'000}}}}, {"no_range", true}});
  const Pulled pulled = pull(request());
  EXPECT_EQ(read_file(pulled.folder + "/model.safetensors"), weights_);
  EXPECT_GT(pulled.received, static_cast<std::int64_t>(kBytes));
  EXPECT_EQ(transfers().size(), 2u);
}

TEST_F(Pull, ReplacesPartsThatAreWrong) {
  const std::string blob = blob_of_weights();
  fs::remove(blob);
  std::ofstream(blob + ".incomplete") << std::string(100'000, 'x');
  server_.forget();
  EXPECT_EQ(read_file(pull(request()).folder + "/model.safetensors"), weights_);
  ASSERT_EQ(transfers().size(), 2u);
  EXPECT_EQ(transfers()[0]["range"], "bytes=100000-");
  EXPECT_EQ(transfers()[1]["range"], json()) << "the checksum was wrong: from the start";
}

TEST_F(Pull, AWrongChecksumTwiceIsAnError) {
  // Small files have git's checksum.
  server_.rules({{"corrupt", {{"config.json", {1, 1}}}}, {"slow", 0.1}});
  const std::string first = error_of(request());
  EXPECT_EQ(first.find("config.json: the transferred file has another checksum than the Hub says (expected "), 0u)
      << first;
  EXPECT_EQ(server_.requests("config.json").size(), 2u);
  server_.rules({{"corrupt", {{"model.safetensors", {1, 1}}}}});
  server_.forget();
  fs::remove_all(folder_ / "hub");
  const std::string second = error_of(request());
  EXPECT_EQ(second.find("model.safetensors: the transferred file has another checksum than the Hub says"), 0u)
      << second;
  EXPECT_EQ(transfers().size(), 2u);
  for (const auto& file : fs::directory_iterator(folder_ / "hub/models--org--tiny/blobs")) {
    EXPECT_NE(file.file_size(), kBytes) << "nothing is left of it: " << file.path();
  }
  EXPECT_FALSE(fs::exists(folder_ / "hub/models--org--tiny/refs/main")) << "a reference is to a complete commit";
  EXPECT_EQ(error_of(request()), "") << "the server has mended";
}

TEST_F(Pull, AsksAgainWhatMaySucceed) {
  server_.rules({{"api_status", {503, 429}}, {"status", {{"model.safetensors", {500}}, {"config.json", {502}}}}});
  EXPECT_EQ(read_file(pull(request()).folder + "/model.safetensors"), weights_);
  EXPECT_EQ(server_.requests("/api/").size(), 3u);
  EXPECT_EQ(transfers().size(), 2u);
}

TEST_F(Pull, ContinuesAStalledTransfer) {
  server_.rules({{"stall", {{"model.safetensors", {200'000}}}}});
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(read_file(pull(request()).folder + "/model.safetensors"), weights_);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(40)) << "the server waits for a minute";
  ASSERT_EQ(transfers().size(), 2u);
  EXPECT_NE(transfers()[1]["range"], json());
  EXPECT_NE(transfers()[1]["if_range"], json()) << "its ETag is a strong one";
}

TEST_F(Pull, SeveralTransferAFileOnce) {
  server_.rules({{"slow", 0.3}});
  std::vector<std::thread> threads;
  std::vector<std::int64_t> received(4);
  for (auto& bytes : received) threads.emplace_back([&] { bytes = pull(request()).received; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(transfers().size(), 1u);
  std::int64_t sum = 0;
  for (const auto bytes : received) sum += bytes;
  EXPECT_EQ(sum, static_cast<std::int64_t>(kBytes + 5000 + 23));
}

TEST_F(Pull, GetsTheFilesOfTheIndex) {
  fs::remove(server_.folder() / "models/org/tiny/model.safetensors");
  const json index{
      {"weight_map", {{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}}}};
  add("model.safetensors.index.json", index.dump());
  for (const char* file : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "consolidated.safetensors", "model.fp16-00001-of-00002.safetensors"}) {
    add(file, large(2000, 7));
  }
  EXPECT_EQ(names(pull(request())),
            "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
            "model.safetensors.index.json tokenizer.json");
  add("model.safetensors.index.json", R"({"weight_map": {"a": "../../../x"}})");
  EXPECT_NE(error_of(request()).find("not an index of weights (expected names of files)"), std::string::npos);
  add("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_EQ(error_of(request()), "org/tiny: a file of the index is missing in the repo at gone.safetensors");
}

TEST_F(Pull, OnlyTheConfigurationIfAsked) {
  PullRequest only = request();
  only.parts = Parts::configuration;
  EXPECT_EQ(names(pull(only)), "config.json tokenizer.json");
}

TEST_F(Pull, GetsAnAdapter) {
  server_.add("models/org/lora/adapter_config.json", "{}");
  server_.add("models/org/lora/adapter_model.safetensors", large(3000));
  server_.add("models/org/lora/optimizer.pt", large(3000));
  EXPECT_EQ(names(pull(request("org/lora"))), "adapter_config.json adapter_model.safetensors");
}

TEST_F(Pull, SaysWhatARepoLacks) {
  fs::remove(server_.folder() / "models/org/tiny/model.safetensors");
  EXPECT_EQ(error_of(request()),
            "org/tiny: no weights in this repo that are read: only safetensors are (expected model.safetensors or "
            "model.safetensors.index.json, got pytorch_model.bin); try a pull request that adds them, hawser pull "
            "org/tiny@refs/pr/N, or a copy that transformers' save_pretrained writes");
  fs::remove(server_.folder() / "models/org/tiny/config.json");
  EXPECT_EQ(error_of(request()).find("org/tiny: no config.json in this repo (expected a model or an adapter"), 0u);
  EXPECT_EQ(transfers().size(), 0u);
}

TEST_F(Pull, ChecksTheSpaceFirst) {
  server_.rules({{"claim", {{"model.safetensors", std::int64_t{1} << 60}}}});
  const std::string error = error_of(request());
  EXPECT_EQ(error.find(folder_.path("hub/models--org--tiny") +
                       ": not enough space for the files of org/tiny (expected 1024.00 PiB, got "),
            0u)
      << error;
  EXPECT_NE(error.find("; try HF_HUB_CACHE=FOLDER on another disk"), std::string::npos) << error;
  EXPECT_EQ(server_.requests().size(), 1u);
}

TEST_F(Pull, SaysWhyTheHubRefuses) {
  const std::string at = server_.url();
  PullRequest none = request();
  none.settings.token.clear();
  none.settings.token_place.clear();
  server_.rules({{"gated", {"org/tiny"}}});
  EXPECT_EQ(error_of(request()),
            "org/tiny: a gated model, and the token's user has no access to it (got the token of "
            "HF_TOKEN); try its terms at " +
                at + "/org/tiny");
  EXPECT_EQ(error_of(none), "org/tiny: a gated model, and there is no token; try its terms at " + at +
                                "/org/tiny, then HF_TOKEN or `hf auth login`");
  server_.rules({{"private", {"org/tiny"}}});
  EXPECT_EQ(error_of(none), "org/tiny: no such model at " + at +
                                ", or a private one (got no token); try the name on its "
                                "page, or HF_TOKEN or `hf auth login`; --dataset for a data set");
  EXPECT_EQ(error_of(request()), "");
  EXPECT_EQ(error_of(request("org/none")), "org/none: no such model at " + at +
                                               ", or a private one (got the token of "
                                               "HF_TOKEN); try the name on its page; --dataset for a data set");
  EXPECT_EQ(error_of(data(request("org/none"))), "org/none: no such data set at " + at +
                                                     ", or a private one (got the "
                                                     "token of HF_TOKEN); try the name on its page");
  EXPECT_EQ(error_of(request("org/tiny@v9")), "org/tiny@v9: no such branch, tag or commit; try org/tiny");
  server_.rules({{"token", "another"}});
  EXPECT_EQ(error_of(request()),
            "HF_TOKEN: the Hub rejects this token: Invalid credentials in Authorization header; try "
            "`hf auth login`");
  server_.rules({{"api_status", {418}}});
  EXPECT_EQ(error_of(request()), "org/tiny: HTTP status 418 of the Hub at " + at);
  PullRequest nowhere = request();
  nowhere.settings.endpoint = "http://127.0.0.1:1";
  EXPECT_EQ(error_of(nowhere).find("org/tiny: the Hub cannot be reached: "), 0u) << error_of(nowhere);
  nowhere.settings.endpoint = "http://user@127.0.0.1:1";
  EXPECT_EQ(error_of(nowhere), "HF_ENDPOINT: not a URL (expected https://HOST, got http://user@127.0.0.1:1)");
}

TEST_F(Pull, FindsRevisions) {
  server_.add("models/org/tiny@refs%pr%7/config.json", "{\"pr\": 7}");
  server_.add("models/org/tiny@refs%pr%7/model.safetensors", weights_);
  pull(request());
  const Pulled pulled = pull(request("org/tiny@refs/pr/7"));
  EXPECT_EQ(names(pulled, true), "config.json") << "weights are those of main";
  EXPECT_EQ(folder_.read("hub/models--org--tiny/refs/refs/pr/7"), pulled.commit);
  EXPECT_EQ(pull(request("org/tiny@" + pulled.commit)).folder, pulled.folder);
  EXPECT_FALSE(fs::exists(folder_ / ("hub/models--org--tiny/refs/" + pulled.commit)));
}

// A mirror that knows less of the API.
TEST_F(Pull, AsksForSizesThatTheListLacks) {
  server_.rules({{"no_blobs", true}, {"cut", {{"model.safetensors", {100'000}}}}});
  EXPECT_EQ(read_file(pull(request()).folder + "/model.safetensors"), weights_);
  EXPECT_EQ(std::ranges::count(server_.requests(), "HEAD", [](const json& request) { return request["method"]; }),
            3 + 2);
}

TEST_F(Pull, GetsTheDataOfADataSet) {
  const auto set = [&](const std::string& file, std::size_t bytes) {
    server_.add("datasets/org/chats/" + file, large(bytes, static_cast<unsigned>(bytes)));
  };
  set("data/train-00000-of-00001.parquet", 4000);
  set("en/test.jsonl.gz", 100);
  set("LICENSE.txt", 10);
  set("stats.csv", 11);
  set(".gitattributes", 12);
  set("pictures/a.png", 2000);
  server_.add("datasets/org/chats/README.md", "---\nlicense: mit\n---\n# Chats\n");
  const Pulled pulled = pull(data(request("org/chats")));
  EXPECT_EQ(names(pulled), "README.md data/train-00000-of-00001.parquet en/test.jsonl.gz");
  EXPECT_EQ(pulled.folder, folder_.path("hub/datasets--org--chats/snapshots/" + pulled.commit));
  PullRequest some = data(request("org/chats"));
  some.include = {"data/*.parquet"};
  EXPECT_EQ(names(pull(some)), "README.md data/train-00000-of-00001.parquet");
  some.include = {"fr/*"};
  EXPECT_EQ(error_of(some),
            "org/chats: no data in this repo that are read (expected .parquet, .jsonl, .ndjson, .txt, "
            ".csv, .tsv or .json files) at --include; try another data set");
  // The card has a path of that type.
  server_.add("datasets/org/chats/README.md", "---\nconfigs:\n- data_files: stats.csv\n---\n");
  EXPECT_EQ(names(pull(data(request("org/chats")))),
            "README.md data/train-00000-of-00001.parquet en/test.jsonl.gz stats.csv");
}

TEST_F(Pull, GetsTheConvertedDataOfOthers) {
  server_.add("datasets/org/audio/README.md", "# Audio");
  server_.add("datasets/org/audio/a.zip", "zip");
  const std::string error = error_of(data(request("org/audio")));
  EXPECT_EQ(error.find("org/audio: no data in this repo that are read (expected"), 0u) << error;
  server_.add("datasets/org/audio@refs%convert%parquet/default/train/0000.parquet", large(3000));
  const Pulled pulled = pull(data(request("org/audio")));
  EXPECT_EQ(names(pulled), "default/train/0000.parquet");
  EXPECT_EQ(folder_.read("hub/datasets--org--audio/refs/refs/convert/parquet"), pulled.commit);
}

// Names and commits are the server's: they must not lead out of the cache.
TEST_F(Pull, IgnoresFilesWithUnsafeNames) {
  EXPECT_TRUE(is_safe_file_name("a/b.c"));
  for (const char* name : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\nb"}) {
    EXPECT_FALSE(is_safe_file_name(name)) << name;
  }
}

TEST_F(Pull, ReportsProgress) {
  PullRequest observed = request();
  PullProgress last;
  std::vector<std::string> done;
  observed.progress = [&](const PullProgress& now) {
    EXPECT_GE(now.bytes_complete, last.bytes_complete);
    last = now;
  };
  observed.file_done = [&](const PulledFile& file) { done.push_back(file.name); };
  pull(observed);
  EXPECT_EQ(last.files, 3);
  EXPECT_EQ(last.files_complete, 3);
  EXPECT_EQ(last.bytes, static_cast<std::int64_t>(kBytes + 5000 + 23));
  EXPECT_EQ(last.bytes_complete, last.bytes);
  EXPECT_EQ(done.size(), 3u);
}

}  // namespace pull_test
}  // namespace hawser::hub
