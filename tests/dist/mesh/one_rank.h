// `on_one_rank`: a result that rank 0 computes for all ranks.
//
//   const Outcome one = on_one_rank([&] { return run(model, layout, *comm::make_self_mesh(), batch_size, 0); });
//   expect_gradients(c.mesh, ours, one, 1e-5);  // on every rank
//
// The ranks of a test share few cores, so one process computes what they are compared with.
#pragma once

#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "mesh_world.h"

namespace hawser::testing {

// A result as bytes, between processes of one program. pass() appends a value, or reads the next one; floats keep their
// bits. A struct with other members than numbers lists them in the order of the bytes:
//
//   struct Steps {
//     std::vector<double> losses;
//     Tensors after;
//     auto fields() { return std::tie(losses, after); }
//   };
class ResultBytes {
 public:
  ResultBytes() = default;                                                                 // appends
  explicit ResultBytes(std::string written) : reads_(true), bytes_(std::move(written)) {}  // reads

  const std::string& bytes() const { return bytes_; }
  bool at_end() const { return at_ == bytes_.size(); }

  void pass(std::string& text) {
    std::size_t size = text.size();
    pass(size);
    text.resize(size);
    raw(text.data(), size);
  }
  template <class T>
  void pass(std::vector<T>& values) {
    std::size_t size = values.size();
    pass(size);
    values.resize(size);
    if constexpr (std::is_arithmetic_v<T>) {
      raw(values.data(), size * sizeof(T));
    } else {
      for (T& value : values) pass(value);
    }
  }
  template <class T, std::size_t N>
  void pass(std::array<T, N>& values) {
    for (T& value : values) pass(value);
  }
  template <class Key, class Value>
  void pass(std::map<Key, Value>& map) {
    std::size_t size = map.size();
    pass(size);
    if (reads_) {
      for (std::size_t i = 0; i < size; ++i) {
        Key key{};
        pass(key);
        pass(map[key]);
      }
    } else {
      for (auto& [key, value] : map) {
        Key copy = key;
        pass(copy);
        pass(value);
      }
    }
  }
  template <class T>
  void pass(std::optional<T>& value) {
    bool present = value.has_value();
    pass(present);
    if (reads_ && present) value.emplace();
    if (present) pass(*value);
  }
  template <class First, class Second>
  void pass(std::pair<First, Second>& values) {
    pass(values.first);
    pass(values.second);
  }
  template <class... T>
  void pass(std::tuple<T...>& values) {
    std::apply([this](auto&... value) { (this->pass(value), ...); }, values);
  }
  template <class T>
  void pass(T& value) {
    if constexpr (requires { value.fields(); }) {
      auto fields = value.fields();
      pass(fields);
    } else {
      static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>, "the type needs fields()");
      raw(&value, sizeof(T));
    }
  }

 private:
  void raw(void* value, std::size_t size) {
    if (size == 0) return;
    if (reads_) {
      HAWSER_CHECK(size <= bytes_.size() - at_, "a result of ", bytes_.size(), " bytes ends early");
      std::memcpy(value, bytes_.data() + at_, size);
      at_ += size;
    } else {
      bytes_.append(static_cast<const char*>(value), size);
    }
  }

  bool reads_ = false;
  std::string bytes_;
  std::size_t at_ = 0;  // of the next value to read
};

// Why `f` has no result, and its result if it has one.
template <class F>
ResultBytes bytes_of_result(const F& f) {
  std::optional<std::string> failure;
  std::decay_t<std::invoke_result_t<const F&>> result{};
  try {
    result = f();
  } catch (const std::exception& error) {
    failure = error.what();
  } catch (...) {
    failure = "an exception that is no std::exception";
  }
  ResultBytes bytes;
  bytes.pass(failure);
  if (!failure) bytes.pass(result);
  return bytes;
}

// Returns what f() returns on rank 0. Collective: the other ranks wait, and if f() throws, all ranks throw. f() calls
// nothing collective and reads only what is equal on all ranks. Its expectations fail the test on rank 0, and so the
// program.
template <class F>
auto on_one_rank(const F& f) {
  using Result = std::decay_t<std::invoke_result_t<const F&>>;
  if (the_world->size() == 1) return Result(f());
  if constexpr (kRankDevice == DeviceKind::cuda) rank_device();  // the first call is collective
  const bool computes = the_world->rank() == Rank(0);
  ResultBytes received(the_world->broadcast_bytes(computes ? bytes_of_result(f).bytes() : std::string()));
  std::optional<std::string> failure;
  received.pass(failure);
  if (failure) throw std::runtime_error(*failure);
  Result result{};
  received.pass(result);
  HAWSER_CHECK(received.at_end(), "a result has more bytes than its type");
  return result;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace hawser::testing
