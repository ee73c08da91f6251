// Out of memory while reading data: an error with its own exit code instead of a crash.
#include <gtest/gtest.h>

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/testing/address_limit.h"
#include "base/testing/temporary_folder.h"
#include "io/mapped_file.h"
#include "prepare/block_pool.h"

namespace hawser::prepare {
namespace memory_test {

constexpr std::int64_t kLittle = std::int64_t{16} << 20;

TEST(WithoutMemory, MappingAFileThrowsDoesNotFit) {
  if (!AddressLimit::kPossible) GTEST_SKIP() << "needs a build without AddressSanitizer";
  const TemporaryFolder folder;
  folder.write("ids.bin", "");
  std::filesystem::resize_file(folder / "ids.bin", 1 << 30);
  const AddressLimit limit(kLittle);
  try {
    const io::MappedFile file(folder / "ids.bin");
    FAIL() << "mapped";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit) << error.what();
    EXPECT_NE(std::string(error.what()).find("cannot allocate 1.00 GiB for "), std::string::npos) << error.what();
  }
}

TEST(WithoutMemory, APoolJoinsItsThreadsIfOneCannotStart) {
  if (!AddressLimit::kPossible) GTEST_SKIP() << "needs a build without AddressSanitizer";
  const BlockEncoder encoder({});
  const AddressLimit limit(kLittle);
  EXPECT_THROW(BlockPool(1000, encoder), std::system_error);
}

}  // namespace memory_test
}  // namespace hawser::prepare
