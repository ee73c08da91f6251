// tokenizer_tool: encodes texts with a tokenizer file, or measures its speed, for compare.py.
//
//   tokenizer_tool ids TOKENIZER TEXTS ANSWERS [special]    writes the ids of the texts and their decoded texts
//   tokenizer_tool speed TOKENIZER TEXTS THREADS SECONDS    prints MB/s of the fastest pass over the texts, repeated
//                                                           for SECONDS; with one thread, by CPU time
//
// TEXTS: for each text its length, then its bytes. ANSWERS: for each text the number of ids, the ids, the length of the
// decoded text and its bytes. All numbers are 32-bit little-endian.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "text/tokenizers/tokenizer.h"

namespace {

using namespace hawser;

std::vector<std::string> read_texts(const char* path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw UserError(Problem{.file = path, .what = "cannot read the texts"});
  std::vector<std::string> texts;
  std::uint32_t size;
  while (stream.read(reinterpret_cast<char*>(&size), sizeof size)) {
    texts.emplace_back(size, '\0');
    if (!stream.read(texts.back().data(), size)) throw UserError(Problem{.file = path, .what = "ends inside a text"});
  }
  return texts;
}

void write_ids(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts, const char* path,
               bool special) {
  std::ofstream out(path, std::ios::binary);
  const auto put = [&](std::size_t size) {
    const auto number = static_cast<std::uint32_t>(size);
    out.write(reinterpret_cast<const char*>(&number), sizeof number);
  };
  std::vector<std::int32_t> ids;
  for (const std::string& text : texts) {
    ids.clear();
    tokenizer.encode(text, ids, special);
    put(ids.size());
    out.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof ids[0]));
    const std::string back = tokenizer.decode(ids);
    put(back.size());
    out.write(back.data(), static_cast<std::streamsize>(back.size()));
  }
  if (!out.flush()) throw UserError(Problem{.file = path, .what = "cannot write the answers"});
}

void measure(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts, int threads, double seconds) {
  // One thread: CPU time, which does not depend on other load. Several threads: elapsed time.
  const auto now = [&] {
    timespec time;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  double best = 0, total = 0;
  for (int pass = 0; pass < 2 || total < seconds; ++pass) {
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      std::vector<std::int32_t> ids;
      for (std::size_t i; (i = next++) < texts.size();) {
        ids.clear();
        tokenizer.encode(texts[i], ids, false);
      }
    };
    const double start = now();
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work);
    work();
    for (std::thread& thread : others) thread.join();
    const double took = now() - start;
    best = std::max(best, static_cast<double>(bytes) / took / 1e6);
    total += took;
  }
  std::printf("%.2f\n", best);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool ids = arguments.size() >= 4 && arguments[0] == "ids";
  if (!ids && !(arguments.size() == 5 && arguments[0] == "speed")) {
    std::fprintf(stderr, "tokenizer_tool: wrong arguments; see the top of tokenizer_tool.cpp\n");
    return 2;
  }
  try {
    const auto tokenizer = text::load_tokenizer(arguments[1]);
    const auto texts = read_texts(argv[3]);
    if (ids) {
      write_ids(*tokenizer, texts, argv[4], arguments.size() > 4);
    } else {
      measure(*tokenizer, texts, std::stoi(arguments[3]), std::stod(arguments[4]));
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
