// Want of memory, as `ulimit -v` makes it.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace hawser {

// While it lives the system gives this process so many bytes of addresses more than it has. AddressSanitizer, which
// takes terabytes of them, ends where it is limited: such builds skip.
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
