#include "checkpoint/formats/safetensors.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/testing/test_paths.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "checkpoint/testing/states.h"
#include "io/json.h"

namespace hawser::checkpoint {
namespace safetensors_test {

using namespace testing;  // NOLINT

// A file as the Python package writes it: length, header padded with spaces to a multiple of 8, data.
std::string file_of(std::string header, const std::string& data, bool pad = true) {
  while (pad && header.size() % 8 != 0) header += ' ';
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},"h":{"dtype":"F16","shape":[2],"data_offsets":[28,32]},)"
    R"("e":{"dtype":"I64","shape":[0],"data_offsets":[32,32]},"s":{"dtype":"F32","shape":[],"data_offsets":[32,36]}})";

std::string sample_data() {
  return bytes_of<float>({0, 1, 2, 3, 4, 5}) + bytes_of<Bf16>({Bf16(1.5f), Bf16(-2.0f)}) +
         bytes_of<std::uint16_t>({0x3e00, 0x8001}) + bytes_of<float>({7});
}

std::vector<float> read_floats(SafetensorsFolder& folder, const std::string& name, const Region& region) {
  std::vector<float> out(static_cast<std::size_t>(region.elements()));
  folder.read(name, region,
              TensorView(reinterpret_cast<std::byte*>(out.data()), DType::f32, region.extent, DeviceKind::cpu));
  return out;
}

// The one line that rejects this file.
std::string rejection(const std::string& bytes) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors", bytes);
  Problems problems;
  EXPECT_FALSE(SafetensorsFolder::open(folder.path(), problems).has_value());
  expect_line(problems.lines(), folder.path("model.safetensors: "));
  return problems.lines();
}

TEST(Safetensors, ReadsBoxesOfEveryType) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors", file_of(kHeader, sample_data()));
  Problems problems;
  auto file = SafetensorsFolder::open(folder.path(), problems);
  ASSERT_TRUE(file.has_value()) << problems.lines();
  EXPECT_EQ(file->names(), (std::vector<std::string>{"a", "b", "e", "h", "s"}));
  EXPECT_EQ(file->find("b")->shape, (Shape{2, 3}));
  EXPECT_EQ(file->find("nothing"), nullptr);
  EXPECT_EQ(read_floats(*file, "b", full({2, 3})), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(read_floats(*file, "b", {{0, 1}, {2, 2}}), (std::vector<float>{1, 2, 4, 5}));
  EXPECT_EQ(read_floats(*file, "a", full({2})), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(read_floats(*file, "h", full({2})), (std::vector<float>{1.5f, -0x1p-24f}));
  EXPECT_EQ(read_floats(*file, "s", full({})), (std::vector<float>{7}));
  Bf16 narrow[2];
  file->read("b", {{1, 0}, {1, 2}},
             TensorView(reinterpret_cast<std::byte*>(narrow), DType::bf16, {2}, DeviceKind::cpu));
  EXPECT_EQ(static_cast<float>(narrow[1]), 4.0f);
  std::byte raw[2];
  file->read_bytes("h", 2, raw, 2);
  EXPECT_EQ(raw[1], std::byte{0x80});
  EXPECT_THROW(read_floats(*file, "b", {{0, 2}, {2, 2}}), InternalError);
  expect_line(error_of([&] { read_floats(*file, "e", full({0})); }), "cannot be converted (expected float32, got I64)");
}

TEST(Safetensors, Float16IsExact) {
  std::vector<std::uint16_t> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  const TemporaryFolder folder;
  write_file(folder / "x.safetensors",
             file_of(R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})", bytes_of(halves)));
  Problems problems;
  auto file = SafetensorsFolder::open(folder / "x.safetensors", problems);
  ASSERT_TRUE(file.has_value()) << problems.lines();
  const auto floats = read_floats(*file, "h", full({65536}));
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), fraction = static_cast<int>(i & 1023);
    double value = exponent == 0 ? fraction * 0x1p-24 : std::ldexp(1.0 + fraction / 1024.0, exponent - 15);
    if (exponent == 31) value = fraction == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
    if (i >> 15 != 0) value = -value;
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(floats[i]));
    } else {
      EXPECT_EQ(static_cast<double>(floats[i]), value);
    }
  }
}

TEST(Safetensors, RejectsBrokenHeadersInOneLine) {
  const auto tensor = [](const std::string& entry) { return R"({"t":)" + entry + "}"; };
  const std::string data(24, '\0');
  const auto entry = [&](const std::string& text) { return rejection(file_of(tensor(text), data)); };
  const auto expect = [](const std::string& line, const std::string& part) { expect_line(line, part); };
  expect(rejection(""), "too short for a header");
  expect(rejection("1234567"), "too short for a header");
  expect(rejection(std::string(8, '\0')), "header too short");
  expect(rejection(std::string(8, '\xff')), "header too long");
  expect(rejection(std::string("\x10\0\0\0\0\0\0\0{}", 10)), "header longer than the file");
  expect(rejection(file_of("[1]", "")), "does not begin with {");
  expect(rejection(file_of(R"({"t":)", "")), "broken JSON at byte ");
  expect(rejection(file_of("{\"\xff\":1}", "")), "broken JSON at byte 10");
  expect(rejection(file_of("{} x", "")), "broken JSON at byte 11");
  expect(rejection(file_of(R"({"t":1e999})", "")), "a number out of range");
  expect(rejection(file_of("{\"a\":" + std::string(100000, '['), "")), "nested too deeply");
  expect(rejection(file_of(R"({"__metadata__":{"a":1}})", "")), "__metadata__ is not an object of strings");
  expect(rejection(file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                           R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                           "")),
         "duplicate key (got 'a')");
  expect(entry("3"), "entry is not an object");
  expect(entry(R"({"dtype":"F32","shape":[6]})"), "without dtype, shape or data_offsets");
  expect(entry(R"({"dtype":"F31","shape":[6],"data_offsets":[0,24]})"), "unknown dtype (got 'F31')");
  expect(entry(R"({"dtype":32,"shape":[6],"data_offsets":[0,24]})"), "unknown dtype (got a non-string value)");
  expect(entry(R"({"dtype":"F32","shape":[6.0],"data_offsets":[0,24]})"), "invalid shape");
  expect(entry(R"({"dtype":"F32","shape":[-6],"data_offsets":[0,24]})"), "invalid shape");
  expect(entry(R"({"dtype":"F32","shape":[6,1,1,1,1,1],"data_offsets":[0,24]})"), "invalid shape");
  expect(entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,24]})"), "shape overflows");
  expect(entry(R"({"dtype":"F32","shape":[0,9223372036854775807,8],"data_offsets":[0,24]})"), "shape overflows");
  expect(entry(R"({"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,24]})"), "invalid shape");
  expect(entry(R"({"dtype":"F32","shape":[6],"data_offsets":[0]})"), "data_offsets are not two numbers");
  expect(entry(R"({"dtype":"F32","shape":[6],"data_offsets":[24,0]})"), "invalid data_offsets");
  expect(entry(R"({"dtype":"F32","shape":[6],"data_offsets":[-24,0]})"), "invalid data_offsets");
  expect(entry(R"({"dtype":"F32","shape":[6],"data_offsets":[0,18446744073709551615]})"), "invalid data_offsets");
  expect(entry(R"({"dtype":"F32","shape":[6],"data_offsets":[9223372036854775783,9223372036854775807]})"),
         "data past the end of the file");
  expect(entry(R"({"dtype":"F32","shape":[7],"data_offsets":[0,28]})"), "data past the end of the file");
  expect(entry(R"({"dtype":"F32","shape":[5],"data_offsets":[0,24]})"),
         "bytes do not match dtype and shape (expected 20");
  expect(entry(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})"), "bytes do not match dtype and shape");
  expect(entry(R"({"dtype":"F32","shape":[5],"data_offsets":[4,24]})"), "a gap between tensors");
  expect(entry(R"({"dtype":"F32","shape":[5],"data_offsets":[0,20]})"), "bytes after the last tensor");
  expect(rejection(file_of(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                           R"("b":{"dtype":"F32","shape":[3],"data_offsets":[12,24]}})",
                           data)),
         "overlapping tensors");
  expect(rejection(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"F32","shape":[3],"data_offsets":[12,24]}})",
                           data)),
         "a gap between tensors");
  expect(entry("{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,24],\"x\\n\":" + std::string(9, '[') + "]"),
         "JSON");
  const std::string truncated = file_of(kHeader, sample_data());
  expect(rejection(truncated.substr(0, truncated.size() - 1)), "data past the end of the file");
}

TEST(Safetensors, RejectsNonRegularFiles) {
  const TemporaryFolder folder;
  Problems problems;
  EXPECT_FALSE(SafetensorsFolder::open(folder.path(), problems).has_value());
  EXPECT_FALSE(SafetensorsFolder::open(folder / "absent.safetensors", problems).has_value());
  ::mkfifo((folder / "pipe.safetensors").c_str(), 0600);
  EXPECT_FALSE(SafetensorsFolder::open(folder / "pipe.safetensors", problems).has_value());
  ASSERT_EQ(problems.size(), 3u);
  expect_line(problems.all()[0].line(), "no weights in this folder");
  expect_line(problems.all()[1].line(), "cannot open: No such file");
  expect_line(problems.all()[2].line(), "not a regular file");
}

class Index : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_ / "x.safetensors", one("a"));
    write_file(folder_ / "y.safetensors", one("b"));
  }
  static std::string one(const std::string& name) {
    return file_of("{\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", bytes_of<float>({1}));
  }
  std::string rejection(const std::string& map) {
    write_file(folder_ / "model.safetensors.index.json", R"({"metadata":{"total_size":8},"weight_map":)" + map + "}");
    Problems problems;
    const auto file = SafetensorsFolder::open(folder_.path(), problems);
    EXPECT_EQ(file.has_value(), problems.empty());
    return problems.lines();
  }
  TemporaryFolder folder_;
};

TEST_F(Index, MustAgreeWithItsFiles) {
  EXPECT_EQ(rejection(R"({"a":"x.safetensors","b":"y.safetensors"})"), "");
  expect_line(rejection(R"({"a":"x.safetensors","b":"x.safetensors"})"),
              "x.safetensors: a tensor of the index is missing");
  expect_line(rejection(R"({"a":"x.safetensors","b":"y.safetensors","c":"y.safetensors"})"),
              "a tensor of the index is missing");
  expect_line(rejection(R"({"a":"x.safetensors","b":"z.safetensors"})"), "z.safetensors: cannot open");
  expect_line(rejection(R"({"a":"x.safetensors","a":"y.safetensors"})"), "duplicate key");
  expect_line(rejection("{}"), "lists no tensor");
  expect_line(rejection("[]"), "without a weight_map");
  expect_line(rejection("{"), "broken JSON at byte ");
  const std::string swapped = rejection(R"({"a":"y.safetensors","b":"x.safetensors"})");
  EXPECT_EQ(std::count(swapped.begin(), swapped.end(), '\n'), 1) << swapped;
  write_file(folder_ / "y.safetensors", one("a"));
  expect_line(rejection(R"({"a":"x.safetensors","b":"y.safetensors"})"), "a tensor that is also in another file (got ");
  write_file(folder_ / "y.safetensors",
             file_of(R"({"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"c":{"dtype":"U8","shape":[0],)"
                     R"("data_offsets":[0,0]}})",
                     ""));
  expect_line(rejection(R"({"a":"x.safetensors","b":"y.safetensors"})"), "a tensor that the index does not list");
}

TEST_F(Index, NamesOnlyFilesOfItsFolder) {
  write_file(folder_ / "secret", one("a"));
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "", ".", "secret",
                           "..\\\\x.safetensors", "x.safetensors\\u0000", "x\\n.safetensors"}) {
    expect_line(rejection(cat(R"({"a":")", name, R"("})")), "not a .safetensors file of its own folder");
  }
  expect_line(rejection(R"({"a":7})"), "of its own folder (got a non-string value)");
}

// Each byte changed to several values, and each length: errors of one line each, or readable tensors.
TEST(Safetensors, SurvivesEveryFlipAndTruncation) {
  const TemporaryFolder folder(memory_folder());
  const std::string path = folder / "model.safetensors";
  const std::string sound = file_of(kHeader, sample_data());
  int rejected = 0, read = 0;
  const auto check = [&](const std::string& bytes) {
    write_file(path, bytes);
    Problems problems;
    auto file = SafetensorsFolder::open(path, problems);
    if (!file) {
      ASSERT_FALSE(problems.empty());
      for (const Problem& problem : problems.all()) expect_line(problem.line(), path);
      ++rejected;
      return;
    }
    ++read;
    std::int64_t total = 0;
    for (const std::string& name : file->names()) {
      const TensorInfo& info = *file->find(name);
      total += info.bytes;
      const std::string line = error_of([&] { read_floats(*file, name, full(info.shape)); });
      if (!line.empty()) expect_line(line, "cannot be converted");
    }
    EXPECT_EQ(total, 36);
  };
  for (std::size_t i = 0; i < sound.size(); ++i) {
    for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::string bytes = sound;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      check(bytes);
    }
    for (const char replacement : {'"', '[', ']', '{', '}', '9', ',', '\0', '-'}) {
      std::string bytes = sound;
      bytes[i] = replacement;
      check(bytes);
      check(sound.substr(0, i) + replacement + sound.substr(i));
    }
    check(sound.substr(0, i));
    check(sound.substr(0, i) + sound.substr(i + 1));
  }
  EXPECT_GT(rejected, 4000);
  EXPECT_GT(read, 500);
}

// Files that the Python package wrote.
TEST(Safetensors, ReadsThePackagesFiles) {
  const std::string tiny = std::string(hawser::testing::kSourceFolder) + "/tests/golden/tiny";
  int files = 0;
  for (const std::string& name : io::list_folder(tiny)) {
    if (!io::exists(tiny + "/" + name + "/model.safetensors")) continue;
    Problems problems;
    const auto file = SafetensorsFolder::open(tiny + "/" + name, problems);
    ASSERT_TRUE(file.has_value()) << problems.lines();
    EXPECT_NE(file->find("model.embed_tokens.weight"), nullptr);
    ++files;
  }
  EXPECT_GT(files, 0) << "no golden files in " << tiny;
}

}  // namespace safetensors_test
}  // namespace hawser::checkpoint
