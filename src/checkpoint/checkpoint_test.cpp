// Any mesh loads what any mesh saved; corruption is found.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/root.h"
#include "checkpoint/testing/states.h"
#include "io/files.h"
#include "io/json.h"

namespace hawser::checkpoint {
namespace checkpoint_test {

using namespace testing;  // NOLINT

// Splits a region into a grid at random places of random dims.
std::vector<Region> cut_randomly(const Region& region, int cuts, const RandomStream& random, std::uint64_t& draw) {
  std::vector<Region> pieces{region};
  for (int i = 0; i < cuts; ++i) {
    const std::size_t which = random.below(pieces.size(), draw++);
    const int rank = region.offset.rank();
    const int dim = static_cast<int>(random.below(static_cast<std::uint64_t>(rank), draw++));
    Region& low = pieces[which];
    if (low.extent[dim] < 2) continue;
    const auto at =
        1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(low.extent[dim] - 1), draw++));
    Region high = low;
    high.offset[dim] += at;
    high.extent[dim] -= at;
    low.extent[dim] = at;
    pieces.push_back(high);
  }
  return pieces;
}

// Tensors over ranks: each split as a flat buffer or into random boxes.
std::vector<Host> cut_mesh(const std::vector<Spec>& specs, int world, const RandomStream& random, std::uint64_t& draw,
                           std::uint64_t version) {
  std::vector<Host> ranks(static_cast<std::size_t>(world));
  for (const Spec& spec : specs) {
    if (random.below(2, draw++) == 0) {
      // Uneven ranges, some empty.
      std::vector<std::int64_t> at{0, spec.shape.elements()};
      for (int i = 1; i < world; ++i) {
        at.push_back(
            static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(spec.shape.elements()) + 1, draw++)));
      }
      std::sort(at.begin(), at.end());
      for (int i = 0; i < world; ++i) {
        ranks[static_cast<std::size_t>(i)].add_range(spec, at[static_cast<std::size_t>(i)],
                                                     at[static_cast<std::size_t>(i) + 1], version);
      }
    } else {
      for (const Region& region : cut_randomly(full(spec.shape), 2 * world, random, draw)) {
        ranks[random.below(static_cast<std::uint64_t>(world), draw++)].add(spec, {region}, version);
      }
    }
  }
  return ranks;
}

TEST(Checkpoint, AnyMeshLoadsWhatAnyMeshSaved) {
  const TemporaryFolder root;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const RandomStream random(seed, "meshes");
    std::uint64_t draw = 0;
    std::vector<Spec> specs;
    for (int i = 0; i < 6; ++i) {
      Shape shape;
      for (std::uint64_t dim = 0; dim <= random.below(3, draw); ++dim) {
        shape.push_back(1 + static_cast<std::int64_t>(random.below(13, draw + 1 + dim)));
      }
      draw += 8;
      specs.push_back({cat("tensor ", i), shape, random.below(2, draw++) == 0 ? DType::f32 : DType::bf16});
    }
    SaveOptions options{.root = root.path(), .step = static_cast<std::int64_t>(seed)};
    if (seed % 2 == 0) options.max_box_bytes = 1 + static_cast<std::int64_t>(random.below(64, draw++));
    const int save_world = 1 + static_cast<int>(random.below(6, draw++));
    save(options, cut_mesh(specs, save_world, random, draw, seed));

    Problems skipped;
    auto checkpoint = Checkpoint::latest(root.path(), skipped);
    ASSERT_TRUE(checkpoint.has_value());
    EXPECT_TRUE(skipped.empty()) << skipped.lines();
    EXPECT_EQ(checkpoint->step(), static_cast<std::int64_t>(seed));
    EXPECT_EQ(checkpoint->world(), save_world);
    EXPECT_EQ(io::parse_own_json(checkpoint->metadata())["position"], 7);
    const std::vector<Host> ranks = cut_mesh(specs, 1 + static_cast<int>(random.below(6, draw++)), random, draw, 0);
    for (const Host& host : ranks) {
      checkpoint->read(host.states);
      EXPECT_TRUE(host.holds(seed)) << "seed " << seed;
    }
    Problems corrupt;
    checkpoint->verify(corrupt);
    EXPECT_TRUE(corrupt.empty()) << corrupt.lines();
  }
}

TEST(Checkpoint, ReadsThroughASmallBufferAndScalars) {
  const TemporaryFolder root;
  // Larger than the staging buffer, so that boxes are read in chunks.
  const Spec large{"large", {3, 701, 1009}}, scalar{"scalar", {}}, none{"none", {0, 4}};
  Host host;
  host.add_range(large, 0, large.shape.elements(), 5);
  host.add(scalar, {full(scalar.shape)}, 5);
  host.add(none, {full(none.shape)}, 5);
  std::vector<Host> ranks;
  ranks.push_back(std::move(host));
  auto checkpoint = Checkpoint::open(save({.root = root.path(), .step = 3}, ranks));
  Host wanted;
  wanted.add(large, {{{1, 5, 7}, {2, 690, 1000}}, {{0, 0, 1008}, {3, 701, 1}}});
  wanted.add(scalar, {full(scalar.shape)});
  wanted.add(none, {full(none.shape)});
  for (int again = 0; again < 2; ++again) {  // the second time without checksums
    checkpoint.read(wanted.states);
    EXPECT_TRUE(wanted.holds(5));
  }
}

TEST(Checkpoint, ConvertsFloat32AndBfloat16) {
  const TemporaryFolder root;
  const std::vector<Spec> narrow{{"a", {5, 7}, DType::bf16}}, wide{{"a", {5, 7}, DType::f32}};
  auto from_wide = Checkpoint::open(save({.root = root.path(), .step = 1}, cut_flat(wide, 3, 9)));
  const auto as_narrow = cut_flat(narrow, 2);
  for (const Host& host : as_narrow) {
    from_wide.read(host.states);
    EXPECT_TRUE(host.holds(9));  // fill() rounds the same way
  }
  auto from_narrow = Checkpoint::open(save({.root = root.path(), .step = 2}, cut_flat(narrow, 3, 9)));
  const auto as_wide = cut_flat(wide, 1), same = cut_flat(narrow, 1);
  from_narrow.read(as_wide[0].states);
  from_narrow.read(same[0].states);
  const Box& w = as_wide[0].states[0].boxes[0];
  const Box& n = same[0].states[0].boxes[0];
  for (int i = 0; i < 35; ++i) EXPECT_EQ(w.view.data<float>()[i], static_cast<float>(n.view.data<Bf16>()[i]));
}

TEST(Checkpoint, NamesAllThatCannotBeReadAtOnce) {
  const TemporaryFolder root;
  auto checkpoint = Checkpoint::open(
      save({.root = root.path(), .step = 1}, cut_flat({{"a", {4, 4}}, {"b", {8}}, {"c", {2}, DType::bf16}}, 2, 1)));
  Host wanted;
  wanted.add({"missing", {4}}, {full({4})});
  wanted.add({"a", {4, 5}}, {full({4, 5})});
  wanted.add({"b", {8}, DType::i32}, {full({8})});
  const std::string lines = error_of([&] { checkpoint.read(wanted.states); });
  EXPECT_NE(lines.find("a tensor is missing in the checkpoint at missing"), std::string::npos) << lines;
  EXPECT_NE(lines.find("the checkpoint has a different shape (expected [4, 5], got [4, 4]) at a"), std::string::npos);
  EXPECT_NE(lines.find("the checkpoint has a different dtype (expected int32, got float32) at b"), std::string::npos);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
}

// A complete checkpoint with a manifest changed by `change` and a matching checksum.
std::string error_with(const std::function<void(Manifest&)>& change, bool read = true) {
  const TemporaryFolder root;
  const std::vector<Spec> specs{{"a", {4, 4}}};
  const std::string folder = save({.root = root.path(), .step = 1}, cut_flat(specs, 2, 1));
  Problems problems;
  Manifest manifest = *read_manifest(folder, problems);
  change(manifest);
  write_file(folder + "/manifest.json", manifest_text(manifest));
  return error_of([&] {
    auto checkpoint = Checkpoint::open(folder);
    const auto wanted = cut_flat(specs, 1);
    if (read) checkpoint.read(wanted[0].states);
  });
}

TEST(Checkpoint, RejectsManifestsThatContradictThemselves) {
  EXPECT_EQ(error_with([](Manifest&) {}), "");
  const auto box = [](Manifest& m) -> SavedBox& { return m.tensors[0].boxes[0]; };
  expect_line(error_with([&](Manifest& m) { m.tensors[0].boxes.pop_back(); }), "elements missing in the checkpoint");
  expect_line(error_with([&](Manifest& m) { box(m).region.offset[0] = 1; }), "boxes overlap");
  expect_line(error_with([&](Manifest& m) { box(m).region.offset[0] = 4; }), "a box outside its tensor");
  expect_line(error_with([&](Manifest& m) { box(m).region.offset[0] = INT64_MAX; }), "a box outside its tensor");
  expect_line(error_with([&](Manifest& m) { box(m).bytes = 28; }), "bytes do not match its extent");
  expect_line(error_with([&](Manifest& m) { box(m).begin = 4; }), "past the end of its file");
  expect_line(error_with([&](Manifest& m) { box(m).begin = INT64_MAX; }), "past the end of its file");
  expect_line(error_with([&](Manifest& m) { box(m).file = 7; }), "a file that is not listed");
  expect_line(error_with([&](Manifest& m) { box(m).checksum ^= 1; }), "checksum mismatch: the data changed");
  expect_line(error_with([&](Manifest& m) { m.files[0].name = "../rank-00000.bin"; }), "invalid file entry");
  expect_line(error_with([&](Manifest& m) { m.files[0].name = "rank-00009.bin"; }), "cannot open");
  expect_line(error_with([&](Manifest& m) { m.tensors[0].shape = {INT64_MAX, INT64_MAX}; }), "an invalid shape");
  expect_line(error_with([&](Manifest& m) { m.tensors.push_back(m.tensors[0]); }), "a duplicate tensor");
  expect_line(error_with([&](Manifest& m) { m.tensors[0].boxes[1].begin = 8; }), "past the end of its file");
}

// Every byte of a checkpoint changed, removed, or the file truncated there: an error of one line that names the file.
// This covers headers, lengths, checksums, tensor data, padding and white space.
TEST(Checkpoint, FindsEveryDamagedByte) {
  const TemporaryFolder root(memory_folder());
  const std::vector<Spec> specs{{"a", {4, 6}}, {"b", {5}, DType::bf16}};
  const std::string folder = save({.root = root.path(), .step = 1}, cut_flat(specs, 2, 1));
  int found = 0;
  const auto check = [&](const std::string& path, std::size_t at) {
    const auto wanted = cut_flat(specs, 1);
    const std::string line = error_of([&] { Checkpoint::open(folder).read(wanted[0].states); });
    expect_line(line, path);
    EXPECT_NE(line, "") << "byte " << at;
    ++found;
  };
  for (const std::string name : {"manifest.json", "rank-00000.bin", "rank-00001.bin"}) {
    const std::string path = folder + "/" + name, sound = read_file(path);
    for (std::size_t i = 0; i < sound.size(); ++i) {
      std::vector<std::string> corrupt = {sound.substr(0, i)};
      for (const int flip : {0x01, 0x20, 0x80, 0xff}) {
        corrupt.push_back(sound);
        corrupt.back()[i] = static_cast<char>(sound[i] ^ flip);
      }
      // Of two equal adjacent bytes, removing either gives the same, shorter file.
      corrupt.push_back(sound.substr(0, i) + sound.substr(i + 1));
      if (name == "manifest.json") corrupt.push_back(sound.substr(0, i) + " " + sound.substr(i));
      for (const std::string& bytes : corrupt) {
        write_file(path, bytes);
        check(path, i);
      }
    }
    write_file(path, sound + "x");
    check(path, sound.size());
    std::filesystem::remove(path);
    check(path, 0);
    write_file(path, sound);
  }
  EXPECT_GT(found, 3000);
  const auto wanted = cut_flat(specs, 1);
  Checkpoint::open(folder).read(wanted[0].states);
}

TEST(Checkpoint, FindsFilesOfAnotherCheckpoint) {
  const TemporaryFolder root(memory_folder());
  const std::vector<Spec> specs{{"a", {4, 6}}, {"b", {4}, DType::bf16}};
  const std::string older = save({.root = root.path(), .step = 1}, cut_flat(specs, 2, 1));
  const std::string folder = save({.root = root.path(), .step = 2}, cut_flat(specs, 2, 2));
  const auto error = [&] {
    const auto wanted = cut_flat(specs, 1);
    return error_of([&] { Checkpoint::open(folder).read(wanted[0].states); });
  };
  const auto swap = [](const std::string& a, const std::string& b) {
    const std::string of_a = read_file(a);
    write_file(a, read_file(b));
    write_file(b, of_a);
  };
  for (const auto& [a, b] : {std::pair{folder + "/rank-00000.bin", folder + "/rank-00001.bin"},
                             std::pair{folder + "/rank-00001.bin", older + "/rank-00001.bin"}}) {
    swap(a, b);
    expect_line(error(), "checksum mismatch: the data changed since it was saved");
    expect_line(error(), "try " + older);
    swap(a, b);
  }
  swap(folder + "/manifest.json", older + "/manifest.json");
  expect_line(error(), folder + "/manifest.json: the manifest names another step (expected 2, got 1)");
  swap(folder + "/manifest.json", older + "/manifest.json");
  EXPECT_EQ(error(), "");
}

// Random places of larger files with the contents of a run's checkpoint: the newest one is skipped or throws
// CorruptCheckpoint; the one before it is suggested and complete.
TEST(Checkpoint, SuggestsThePreviousOneWhereverItIsCorrupt) {
  const TemporaryFolder root(memory_folder());
  const std::vector<Spec> specs{{"model.embed", {61, 32}}, {"model.norm", {33}}, {"head", {7, 5}, DType::bf16}};
  const std::string older = save({.root = root.path(), .step = 1}, cut_flat(specs, 3, 1));
  const std::string folder = save({.root = root.path(), .step = 2, .max_box_bytes = 512}, cut_flat(specs, 3, 2));
  const std::vector<std::string> names = io::list_folder(folder);
  ASSERT_EQ(names.size(), 4u);
  const RandomStream random(5, "damage");
  int passed_over = 0, corrupt = 0;
  for (std::uint64_t draw = 0; draw < 4000;) {
    const std::string path = folder + "/" + names[random.below(names.size(), draw++)], sound = read_file(path);
    std::string bytes = sound;
    const std::size_t at = random.below(sound.size(), draw++);
    switch (random.below(3, draw++)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 + random.below(255, draw)));
        break;
      case 1:
        bytes.resize(at);
        break;
      default:
        bytes.erase(at, 1 + random.below(100, draw));
    }
    ++draw;
    write_file(path, bytes);
    Problems skipped;
    auto checkpoint = Checkpoint::latest(root.path(), skipped);
    ASSERT_TRUE(checkpoint.has_value());
    const auto wanted = cut_flat(specs, 2);
    if (checkpoint->step() == 1) {
      ++passed_over;
      expect_line(skipped.lines(), path);
      expect_line(error_of([&] { Checkpoint::open(folder); }), "try " + older);
    } else {
      ++corrupt;
      std::string line;
      for (const Host& host : wanted) {
        const std::string mine = error_of([&] { checkpoint->read(host.states); });
        if (line.empty()) line = mine;
      }
      expect_line(line, path + ": ");
      expect_line(line, "try " + older);
      Problems verified;
      checkpoint->verify(verified);
      EXPECT_FALSE(verified.empty());
    }
    write_file(path, sound);
  }
  EXPECT_GT(passed_over, 300);
  EXPECT_GT(corrupt, 150);
  Problems skipped;
  EXPECT_EQ(Checkpoint::latest(root.path(), skipped)->step(), 2);
  EXPECT_TRUE(skipped.empty());
}

// A run that continues to save neither removes nor changes what a reader has opened.
TEST(Checkpoint, AReaderKeepsWhatItOpened) {
  const TemporaryFolder root;
  const std::vector<Spec> specs{{"a", {40, 6}}};
  const std::string checkpoints = root / "checkpoints", best = root / "best";
  const auto save_step = [&](std::int64_t step) {
    const std::string folder =
        save({.root = checkpoints, .step = step}, cut_flat(specs, 2, static_cast<std::uint64_t>(step)));
    keep_also_as(folder, best);
    keep_last(checkpoints, 1);
    return folder;
  };
  const auto holds = [&](Checkpoint& checkpoint, std::uint64_t version) {
    const auto wanted = cut_flat(specs, 1);
    checkpoint.read(wanted[0].states);
    return wanted[0].holds(version);
  };
  const std::string first = save_step(1);
  {
    auto of_run = Checkpoint::open(first), of_best = Checkpoint::open(best);
    EXPECT_EQ(of_best.step(), 1);
    save_step(2);
    save_step(3);
    EXPECT_TRUE(io::exists(first)) << "it is being read";
    EXPECT_FALSE(io::exists(checkpoints + "/step-00000002"));
    EXPECT_TRUE(holds(of_run, 1));
    EXPECT_TRUE(holds(of_best, 1)) << "of the folder that was best when it was opened";
    auto newest = Checkpoint::open(best);
    EXPECT_TRUE(holds(newest, 3));
  }
  save_step(4);
  EXPECT_FALSE(io::exists(first));
  auto left = Checkpoint::open(best);
  std::filesystem::remove_all(checkpoints);
  auto again = Checkpoint::open(best);  // its own links
  EXPECT_TRUE(holds(again, 4));
  EXPECT_EQ(io::list_folder(root.path()), std::vector<std::string>{"best"});
}

TEST(Checkpoint, RejectsOtherVersionsAndNamesByteRanges) {
  const TemporaryFolder root;
  const std::vector<Spec> specs{{"a", {4, 6}}};
  const std::string folder = save({.root = root.path(), .step = 1}, cut_flat(specs, 1, 1));
  std::string text = read_file(folder + "/manifest.json");
  const std::string sound = text;
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 9");
  write_file(folder + "/manifest.json", text);
  expect_line(error_of([&] { Checkpoint::open(folder); }), "unknown checkpoint version (expected 1, got 9)");
  write_file(folder + "/manifest.json", sound);
  std::string data = read_file(folder + "/rank-00000.bin");
  data[40] ^= 4;
  write_file(folder + "/rank-00000.bin", data);
  const auto wanted = cut_flat(specs, 1);
  expect_line(error_of([&] { Checkpoint::open(folder).read(wanted[0].states); }), "at bytes 0 to 96, a [0:4, 0:6]");
  Problems corrupt;
  Checkpoint::open(folder).verify(corrupt);
  EXPECT_EQ(corrupt.size(), 1u);
}

}  // namespace checkpoint_test
}  // namespace hawser::checkpoint
