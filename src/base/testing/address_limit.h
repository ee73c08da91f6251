// `AddressLimit`: limits the address space of a test process, like `ulimit -v`.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace hawser {

// While it exists, this process can map at most `more` bytes in addition to what it has mapped. AddressSanitizer maps
// terabytes and aborts under a limit: skip the test if !kPossible.
class AddressLimit {
 public:
#ifdef __SANITIZE_ADDRESS__
  static constexpr bool kPossible = false;
#else
  static constexpr bool kPossible = true;
#endif

  explicit AddressLimit(std::int64_t more) {
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + more), before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressLimit() {
    setrlimit(RLIMIT_AS, &before_);
  }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace hawser
