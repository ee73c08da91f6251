// The one function that g++ 12 takes from a libstdc++ newer than manylinux_2_34 has (GLIBCXX_3.4.30). In the program it
// replaces the library's.
#include <condition_variable>

namespace std {

void condition_variable::wait(unique_lock<mutex>& lock) {
  pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}

}  // namespace std
