// A prepare that is stopped, killed or finds other files resumes where it was, or starts over.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/testing/system_calls.h"
#include "prepare/testing/archives.h"
#include "prepare/testing/bytes_tokenizer.h"
#include "prepare/testing/prepare_fixture.h"

namespace hawser::prepare {
namespace prepare_resume_test {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;
using PrepareResumes = PrepareFixture;

// A signal during `fit`'s preparation.
TEST_F(PrepareResumes, StopsAndContinues) {
  folder_.write("a.jsonl", lines(400, 1));
  prepare(options({"a.jsonl"}, "whole"));
  PrepareOptions with = options({"a.jsonl"});
  for (const int blocks : {1, 3, 9}) {
    EXPECT_TRUE(stops_after(with, blocks));
    EXPECT_FALSE(is_prepared(with));
  }
  EXPECT_TRUE(prepare(with).resumed);
  EXPECT_TRUE(files("out") == files("whole"));
}

// Wherever it stops: between lines, between documents of a token file, between texts, and within a text, whose hash is
// known at its end alone.
TEST_F(PrepareResumes, ContinuesFromEveryPlaceWhereItStops) {
  const std::string book = text(400, 5);  // three parts
  folder_.write("book.txt", book);
  folder_.write("copy.txt", book);
  folder_.write("longer.txt", book + "and on");
  folder_.write("a.jsonl", lines(25, 1) + lines(15, 1));
  const std::string tokenizer = folder_.write("t.json", tokenizer_of_bytes({"<e>"}));  // quickly read
  PrepareOptions first = options({"copy.txt", "longer.txt"}, "tokens");
  first.tokenizer = tokenizer;
  prepare(first);
  for (const bool deduplicate : {false, true}) {
    const auto with_output = [&](const std::string& output) {
      PrepareOptions with = options({"tokens/train", "book.txt", "copy.txt", "a.jsonl", "longer.txt"}, output);
      with.tokenizer = tokenizer;
      with.block_bytes = 1500;
      with.deduplicate = deduplicate;
      return with;
    };
    fs::remove_all(folder_.path("whole"));
    const Prepared whole = prepare(with_output("whole"));
    EXPECT_EQ(whole.duplicates > 0, deduplicate);
    int stops = 0;
    for (bool stopped = true; stopped; ++stops) {
      fs::remove_all(folder_.path("out"));
      const PrepareOptions with = with_output("out");
      stopped = stops_after(with, stops);
      if (stopped) EXPECT_EQ(prepare(with).duplicates, whole.duplicates) << stops;
      EXPECT_TRUE(files("out") == files("whole")) << stops;
    }
    EXPECT_GE(stops, 8);
  }
}

// A state that is found after a crash names no byte that is not on disk, and neither does a published file.
TEST_F(PrepareResumes, DraftsAreOnDiskBeforeTheStateThatCountsThem) {
  folder_.write("a.jsonl", lines(40, 1));
  PrepareOptions with = options({"a.jsonl"});
  with.validation_fraction = 0.2;
  with.deduplicate = true;
  with.save_every = std::chrono::milliseconds(0);
  SystemCalls calls(folder_.path("out"));
  int states = 0;
  calls.observe([&](const std::string& line) {
    const bool state = line == "rename unfinished/state.json.tmp unfinished/state.json";
    if (!state && !line.starts_with("rename unfinished/train.idx ")) return;
    states += state;
    for (const std::string& lost : calls.not_durable()) EXPECT_FALSE(lost.starts_with("not synced: ")) << lost;
  });
  prepare(with);
  EXPECT_GT(states, 2);
  EXPECT_EQ(calls.not_durable(), SystemCalls::Lines());
}

TEST_F(PrepareResumes, ResumesAfterSigkill) {
  folder_.write("a.jsonl.gz", gzip(lines(1500, 1)));
  folder_.write("b.txt", text(40000, 2));
  folder_.write("c.jsonl", lines(1500, 3) + lines(700, 1));
  folder_.write("d.txt", text(9000, 4));
  prepare(options({"d.txt", "c.jsonl"}, "tokens"));
  for (const bool deduplicate : {false, true}) {
    const auto with_output = [&](const std::string& output) {
      PrepareOptions with = options({"a.jsonl.gz", "tokens/train", "b.txt", "c.jsonl", "d.txt"}, output);
      with.validation_fraction = 0.2;
      with.deduplicate = deduplicate;
      with.save_every = std::chrono::milliseconds(20);
      with.block_bytes = 10000;
      return with;
    };
    const PrepareOptions expected = with_output(deduplicate ? "expected2" : "expected");
    const auto began = std::chrono::steady_clock::now();
    prepare(expected);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const RandomStream random(7, "kills");
    int kills = 0, finished = 0, resumed = 0, rounds = 4;
    for (int round = 0; round < rounds; ++round) {
      const std::string output = "run" + std::to_string(round) + (deduplicate ? "d" : "");
      PrepareOptions with = with_output(output);
      const int before = kills;
      while (true) {
        with.threads = 1 + (kills % 3);
        const pid_t child = ::fork();
        if (child == 0) {
          try {
            const Prepared prepared = prepare(with);
            std::_Exit(!prepared.changed.empty() ? 1 : prepared.resumed ? 2 : 0);
          } catch (...) {
            std::_Exit(1);
          }
        }
        // Each round waits longer, for a child that starts slower than this process did (under a sanitizer).
        const double patience = 0.9 + 0.1 * (kills - before);
        const double wait = random.uniform(static_cast<std::uint64_t>(100 * round + kills)) * seconds * patience;
        std::this_thread::sleep_for(std::chrono::duration<double>(wait));
        ::kill(child, SIGKILL);
        int status = 0;
        ::waitpid(child, &status, 0);
        if (WIFEXITED(status)) {
          ASSERT_NE(WEXITSTATUS(status), 1);
          resumed += WEXITSTATUS(status) == 2;
          break;
        }
        ++kills;
        // A file under its final name is complete.
        for (const char* name : {"train", "valid"}) {
          const std::string prefix = folder_.path(output + "/" + name);
          if (fs::exists(prefix + ".idx")) TokenFile(prefix).check_ids(4096);
        }
        ASSERT_LT(kills, 400);
      }
      ++finished;
      // On a busy machine the time that was measured may be too long.
      if (round + 1 == rounds && rounds < 20 && (kills <= 3 || resumed == 0)) ++rounds;
      EXPECT_TRUE(is_prepared(with));
      EXPECT_TRUE(files(output) == files(deduplicate ? "expected2" : "expected")) << output;
      fs::remove_all(folder_.path(output));
    }
    EXPECT_GT(kills, 3);
    EXPECT_GT(resumed, 0);
    EXPECT_EQ(finished, rounds);
  }
}

TEST_F(PrepareResumes, DoesNotResumeWithOtherSources) {
  folder_.write("a.jsonl", lines(900, 1));
  const PrepareOptions with = options({"a.jsonl"});
  const auto stop = [&](PrepareOptions stopped) {
    stopped.save_every = std::chrono::milliseconds(0);
    stopped.progress = [](const PrepareProgress& progress) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (progress.bytes_done > progress.bytes_total / 2) throw std::runtime_error("stopped");
    };
    EXPECT_THROW(prepare(stopped), std::runtime_error);
  };
  prepare(options({"a.jsonl"}, "expected"));
  stop(with);
  EXPECT_TRUE(fs::exists(folder_.path("out/unfinished/state.json")));
  EXPECT_FALSE(fs::exists(folder_.path("out/train.idx")));
  // Starts over after a changed source, and after a draft that lost bytes.
  folder_.write("a.jsonl", lines(900, 2));
  EXPECT_FALSE(prepare(with).resumed);
  EXPECT_FALSE(fs::exists(folder_.path("out/unfinished")));
  fs::remove_all(folder_.path("out"));
  stop(with);
  fs::resize_file(folder_.path("out/unfinished/train.lengths"), 4);
  EXPECT_FALSE(prepare(with).resumed);
  prepare(options({"a.jsonl"}, "second"));
  EXPECT_TRUE(files("out") == files("second"));
  // Resumes if nothing changed.
  fs::remove_all(folder_.path("out"));
  stop(with);
  const Prepared resumed = prepare(with);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.changed, "");
  EXPECT_TRUE(files("out") == files("second"));
}

TEST_F(PrepareResumes, DoesNotResumeWithChangedDrafts) {
  folder_.write("a.jsonl", lines(900, 1));
  PrepareOptions with = options({"a.jsonl"});
  with.deduplicate = true;
  with.save_every = std::chrono::milliseconds(0);
  PrepareOptions expected = options({"a.jsonl"}, "expected");
  expected.deduplicate = true;
  prepare(expected);
  const auto expect_starts_over = [&](const std::string& changed) {
    std::fstream(folder_.path(changed), std::ios::in | std::ios::out | std::ios::binary).seekp(10).put('\x7f');
    const Prepared prepared = prepare(with);
    EXPECT_EQ(prepared.changed, folder_.path(changed));
    EXPECT_FALSE(prepared.resumed);
    EXPECT_TRUE(files("out") == files("expected"));
    fs::remove_all(folder_.path("out"));
  };
  for (const char* name : {"train.bin", "train.lengths", "train.bounds", "contents"}) {
    PrepareOptions stopped = with;
    stopped.progress = [](const PrepareProgress& progress) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (progress.bytes_done > progress.bytes_total / 2) throw std::runtime_error("stopped");
    };
    EXPECT_THROW(prepare(stopped), std::runtime_error);
    expect_starts_over(cat("out/unfinished/", name));
  }
  // Complete drafts, some of which have their final names.
  for (const auto& [obstacle, name] : {std::pair("train.bin", "unfinished/train.bin"),
                                       {"train.bin", "unfinished/train.idx"},
                                       {"train.idx", "train.bin"},
                                       {"train.idx", "unfinished/train.idx"}}) {
    const std::string place = folder_.path(cat("out/", obstacle));
    PrepareOptions stopped = with;
    stopped.progress = [&](const PrepareProgress&) { fs::create_directories(place + "/in the way"); };
    EXPECT_THROW(prepare(stopped), UserError);
    fs::remove_all(place);
    expect_starts_over(cat("out/", name));
  }
}

// Checksums are computed from blocks of 4 MiB.
TEST_F(PrepareResumes, FindsAChangeBeyondTheFirstBlockOfAFile) {
  {
    TokenFileWriter writer(folder_.path("large"), 4096);
    writer.add_sequence(Ids(2'200'000, 7));  // 4.4 MB
    writer.finish();
  }
  folder_.write("a.jsonl", "{\"input_ids\": [5, 6]}\n{\"input_ids\": [7]}\n");
  PrepareOptions with = options({"large", "a.jsonl"});
  with.save_every = std::chrono::milliseconds(0);
  const auto change = [&](const std::string& name) {
    const std::string path = folder_.path(name);
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(4'300'000).put('\x05');
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
  };
  // A state is saved with the long document, and the next block stops.
  int calls = 0;
  PrepareOptions stopped = with;
  stopped.stop = [&] { return ++calls > 1; };
  EXPECT_THROW(prepare(stopped), Error);
  change("out/unfinished/train.bin");
  EXPECT_EQ(prepare(with).changed, folder_.path("out/unfinished/train.bin"));
  EXPECT_TRUE(is_prepared(with));
  change("out/train.bin");
  EXPECT_FALSE(is_prepared(with));
}

}  // namespace prepare_resume_test
}  // namespace hawser::prepare
