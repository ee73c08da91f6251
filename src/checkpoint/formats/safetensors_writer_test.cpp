#include "checkpoint/formats/safetensors_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/testing/states.h"
#include "io/json.h"

namespace hawser::checkpoint {
namespace safetensors_writer_test {

using namespace testing;  // NOLINT

const std::vector<Spec> kTensors{{"model.embed.weight", {50, 7}, DType::bf16},
                                 {"model.norm.weight", {7}},
                                 {"model.empty", {0, 3}},
                                 {"model.w", {6, 5, 4}},
                                 {"model.b", {3}, DType::bf16},
                                 {"last", {0}}};

std::vector<SafetensorsSpec> specs_of(const std::vector<Spec>& tensors) {
  std::vector<SafetensorsSpec> specs;
  for (const Spec& spec : tensors) specs.push_back({spec.name, spec.shape, spec.dtype});
  return specs;
}

void write(const std::string& folder, const SafetensorsOptions& options = {}, std::uint64_t version = 1) {
  std::vector<std::byte> memory(4000);
  write_safetensors(
      folder, specs_of(kTensors),
      [&](const SafetensorsSpec& spec) {
        fill({spec.name, spec.shape, spec.dtype}, version, full(spec.shape), memory.data());
        return TensorView(memory.data(), spec.dtype, spec.shape, DeviceKind::cpu);
      },
      options);
}

// More elements than are converted or read at a time.
TEST(SafetensorsWriter, LargeTensorsAreConvertedInPieces) {
  const std::int64_t count = (std::int64_t{1} << 20) + 100'000;
  std::vector<float> values(static_cast<std::size_t>(count)), got(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251);
  const auto view_of = [&](std::vector<float>& of) {
    return TensorView(reinterpret_cast<std::byte*>(of.data()), DType::f32, {count}, DeviceKind::cpu);
  };
  for (const SafetensorsSpec& spec :
       {SafetensorsSpec{"w", {count}, DType::bf16}, SafetensorsSpec{"w", {count}, DType::f32, true},
        SafetensorsSpec{"w", {count}, DType::f32}}) {
    const TemporaryFolder folder;
    write_safetensors(folder.path("out"), {spec}, [&](const SafetensorsSpec&) { return view_of(values); });
    Problems problems;
    auto file = SafetensorsFolder::open(folder.path("out"), problems);
    ASSERT_TRUE(file.has_value()) << problems.lines();
    file->read("w", full(spec.shape), view_of(got));
    EXPECT_TRUE(got == values) << file->find("w")->type->name;
  }
}

void expect_holds(const std::string& folder, std::uint64_t version = 1) {
  Problems problems;
  auto file = SafetensorsFolder::open(folder, problems);
  ASSERT_TRUE(file.has_value()) << problems.lines();
  EXPECT_EQ(file->names().size(), kTensors.size());
  Host host;
  for (const Spec& spec : kTensors) {
    ASSERT_NE(file->find(spec.name), nullptr) << spec.name;
    EXPECT_EQ(file->find(spec.name)->begin % size_of(spec.dtype), 0);
    host.add(spec, {full(spec.shape)});
    if (spec.shape.rank() > 0 && spec.shape[0] > 2) {
      Region part = full(spec.shape);
      part.offset[0] = 1;
      part.extent[0] -= 2;
      if (spec.shape.rank() > 1) part.extent[1] = part.offset[1] = 2;
      host.add(spec, {part});
    }
  }
  for (const NamedState& state : host.states) {
    for (const Box& box : state.boxes) file->read(state.name, region_of(box), box.view);
  }
  EXPECT_TRUE(host.holds(version));
}

// All finite values of float16 and, between each pair of neighbours, values nearer to one of them and in the middle.
TEST(SafetensorsWriter, RoundsToFloat16) {
  constexpr int kInfinity = 0x7c00;
  const auto value_of = [](int half) {  // exact: the neighbours' average too
    const int exponent = half >> 10, fraction = half & 1023;
    return exponent == 0 ? fraction * 0x1p-24 : std::ldexp(1.0 + fraction / 1024.0, exponent - 15);
  };
  std::vector<float> values;
  std::vector<std::uint16_t> halves;
  for (int half = 0; half < kInfinity; ++half) {
    const double low = value_of(half), high = half + 1 < kInfinity ? value_of(half + 1) : 65536;
    for (const double part : {0.0, 0.25, 0.5, 0.75}) {
      const int rounded = part < 0.5 || (part == 0.5 && half % 2 == 0) ? half : half + 1;
      if (rounded == kInfinity) continue;  // rejected, below
      for (const int sign : {0, 1}) {
        values.push_back(static_cast<float>((sign == 0 ? 1 : -1) * (low + part * (high - low))));
        halves.push_back(static_cast<std::uint16_t>(sign << 15 | rounded));
      }
    }
  }
  values.insert(values.end(), {HUGE_VALF, -HUGE_VALF, std::nanf("")});
  halves.insert(halves.end(), {kInfinity, 0xfc00, 0x7e00});
  const auto count = static_cast<std::int64_t>(values.size());
  const TemporaryFolder root;
  const auto write_f16 = [&](const std::string& folder) {
    write_safetensors(folder, {{"x", {count}, DType::f32, true}}, [&](const SafetensorsSpec&) {
      return TensorView(reinterpret_cast<std::byte*>(values.data()), DType::f32, {count}, DeviceKind::cpu);
    });
  };
  write_f16(root / "f16");
  Problems problems;
  auto file = SafetensorsFolder::open(root / "f16", problems);
  ASSERT_TRUE(file.has_value()) << problems.lines();
  EXPECT_STREQ(file->find("x")->type->name, "F16");
  std::vector<std::uint16_t> stored(halves.size());
  file->read_bytes("x", 0, reinterpret_cast<std::byte*>(stored.data()), 2 * count);
  for (std::size_t i = 0; i < stored.size(); ++i) ASSERT_EQ(stored[i], halves[i]) << values[i];

  values[7] = -65520;
  expect_line(error_of([&] { write_f16(root / "over"); }),
              "a weight is outside the range of float16 (expected at most 65504, got -65520) at x; try --dtype bf16");
  EXPECT_FALSE(io::exists(root / "over"));
}

TEST(SafetensorsWriter, RejectsWhatBf16WouldMakeInfinite) {
  const TemporaryFolder root;
  const auto write_bf16 = [&](float value, const std::string& name) {
    SafetensorsWriter writer(root / name, {{.name = "x", .shape = {1}, .dtype = DType::bf16}});
    writer.append(TensorView(reinterpret_cast<std::byte*>(&value), DType::f32, {1}, DeviceKind::cpu));
    writer.finish();
  };
  write_bf16(3.3895313892515355e38f, "largest");
  write_bf16(-std::numeric_limits<float>::infinity(), "infinite");
  expect_line(error_of([&] { write_bf16(-3.4e38f, "over"); }),
              "a weight is outside the range of bf16 (expected at most 3.38953e+38, got -3.4e+38) at x; try --dtype "
              "float32");
}

TEST(SafetensorsWriter, WritesOneFileOrShards) {
  const TemporaryFolder root;
  write(root / "single");
  EXPECT_EQ(io::list_folder(root / "single"), std::vector<std::string>{"model.safetensors"});
  expect_holds(root / "single");
  const std::string header = read_file(root / "single/model.safetensors");
  EXPECT_NE(header.find(R"("__metadata__":{"format":"pt"})"), std::string::npos);
  for (const std::int64_t bytes : {1, 100, 500, 750, 1000}) {
    const std::string folder = root / cat("shards-", bytes, "/");
    write(folder, {.max_shard_bytes = bytes});
    expect_holds(folder);
    const io::Json index = io::parse_own_json(read_file(folder + "model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], 700 + 28 + 480 + 6);
    EXPECT_EQ(index["weight_map"].size(), kTensors.size());
    for (const std::string& name : io::list_folder(folder)) {
      EXPECT_TRUE(name.rfind("model-0000", 0) == 0 || name == "model.safetensors.index.json") << name;
    }
  }
  for (const std::string& name : io::list_folder(root.path())) EXPECT_NE(name[0], '.') << name;
}

TEST(SafetensorsWriter, TakesPiecesAndConverts) {
  const TemporaryFolder root;
  std::vector<float> values(35);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.001f;
  const TensorView view(reinterpret_cast<std::byte*>(values.data()), DType::f32, {35}, DeviceKind::cpu);
  SafetensorsWriter writer(root / "out", {{"a", {5, 7}, DType::bf16}, {"b", {5, 7}}});
  writer.append(view.rows(0, 3));
  writer.append(view.rows(3, 32));
  writer.append(view);
  writer.add_file("config.json", "{}");
  EXPECT_THROW(writer.add_file("../config.json", "{}"), InternalError);
  EXPECT_THROW(writer.append(view), InternalError);
  EXPECT_FALSE(io::exists(root / "out"));
  writer.finish();
  EXPECT_EQ(io::list_folder(root / "out"), (std::vector<std::string>{"config.json", "model.safetensors"}));
  Problems problems;
  auto file = SafetensorsFolder::open(root / "out", problems);
  ASSERT_TRUE(file.has_value()) << problems.lines();
  std::vector<float> out(35);
  const TensorView to(reinterpret_cast<std::byte*>(out.data()), DType::f32, {35}, DeviceKind::cpu);
  file->read("b", full({5, 7}), to);
  EXPECT_EQ(out, values);
  file->read("a", full({5, 7}), to);
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<float>(Bf16(values[i])));
}

TEST(SafetensorsWriter, ReplacesOnlyExportsAtomically) {
  const TemporaryFolder root;
  const std::string folder = root / "export";
  io::make_folders(folder);
  write(folder);  // an empty folder is fine
  expect_line(error_of([&] { write(folder, {}, 2); }), "the export folder is not empty");
  expect_holds(folder, 1);
  write(folder, {.max_shard_bytes = 500, .replace = true}, 2);
  expect_holds(folder, 2);
  EXPECT_FALSE(io::exists(folder + "/model.safetensors"));
  io::make_folders(folder + "/thesis");
  expect_line(error_of([&] { write(folder, {.replace = true}, 3); }), "contains files that are not part of an export");
  io::make_folders(root / "home");
  write_file(root / "home/letter", "x");
  expect_line(error_of([&] { write(root / "home", {.replace = true}); }),
              "contains files that are not part of an export");
  expect_line(error_of([&] { write(root / "home/letter"); }), "is a file, not a folder");
  { const SafetensorsWriter unfinished(root / "unfinished", specs_of(kTensors)); }
  EXPECT_EQ(io::list_folder(root.path()), (std::vector<std::string>{"export", "home"}));
}

TEST(SafetensorsWriter, RemovesLeftoversOfAKilledExport) {
  const TemporaryFolder root;
  const auto specs = specs_of(kTensors);
  wait_child(start_child([&] {
    const SafetensorsWriter killed(root / "export", specs);
    ::_exit(0);
  }));
  EXPECT_EQ(io::list_folder(root.path()).size(), 1u);
  const SafetensorsWriter living(root / "export", specs);
  EXPECT_EQ(io::list_folder(root.path()).size(), 1u);
  write(root / "export");
  EXPECT_EQ(io::list_folder(root.path()).size(), 2u);
}

TEST(SafetensorsWriter, AFullDiskLeavesTheOldExport) {
  const TemporaryFolder root;
  write(root / "export");
  const int status = wait_child(start_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit bound{900, 900};
    ::setrlimit(RLIMIT_FSIZE, &bound);
    const std::string line = error_of([&] { write(root / "export", {.replace = true}, 2); });
    ::_exit(line.find("file size limit exceeded") != std::string::npos ? 0 : 3);
  }));
  EXPECT_EQ(status, 0);
  expect_holds(root / "export", 1);
  EXPECT_EQ(io::list_folder(root.path()), std::vector<std::string>{"export"});
}

}  // namespace safetensors_writer_test
}  // namespace hawser::checkpoint
