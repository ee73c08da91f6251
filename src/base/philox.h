// Philox4x32-10: counter-based random numbers. A value depends on its key and counter, not on who computes it or when.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace hawser {

using PhiloxWords = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Ten rounds on `counter` under `key`; 128 random bits.
constexpr PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// FNV-1a, 64 bits: hashes names into keys.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325u) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// A stream of random numbers named by (seed, name). Element i has the same value on every rank.
class RandomStream {
 public:
  constexpr RandomStream(std::uint64_t seed, std::string_view name) : key_(mix(seed, fnv1a(name))) {}
  constexpr RandomStream(std::uint64_t seed, std::uint64_t name) : key_(mix(seed, name)) {}

  constexpr PhiloxKey key() const { return key_; }
  constexpr PhiloxWords words(std::uint64_t element, std::uint64_t step = 0) const {
    return philox({static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32),
                   static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32)},
                  key_);
  }
  constexpr std::uint64_t bits(std::uint64_t element, std::uint64_t step = 0) const {
    const auto w = words(element, step);
    return (std::uint64_t{w[1]} << 32) | w[0];
  }
  // Uniform in [0, 1), 53 bits.
  constexpr double uniform(std::uint64_t element, std::uint64_t step = 0) const {
    return static_cast<double>(bits(element, step) >> 11) * 0x1p-53;
  }
  // Uniform in [0, bound); the bias is negligible for bounds far below 2^64.
  constexpr std::uint64_t below(std::uint64_t bound, std::uint64_t element, std::uint64_t step = 0) const {
    return static_cast<std::uint64_t>((static_cast<__uint128_t>(bits(element, step)) * bound) >> 64);
  }
  // Standard normal by Box-Muller; both uniforms come from one counter.
  double normal(std::uint64_t element, std::uint64_t step = 0) const {
    const auto w = words(element, step);
    const double u = (static_cast<double>((std::uint64_t{w[1]} << 32 | w[0]) >> 11) + 0.5) * 0x1p-53;
    const double v = static_cast<double>((std::uint64_t{w[3]} << 32 | w[2]) >> 11) * 0x1p-53;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  static constexpr PhiloxKey mix(std::uint64_t seed, std::uint64_t name) {
    const auto w = philox({static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32), 0x68617773u, 0},
                          {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    return {w[0], w[1]};
  }
  PhiloxKey key_;
};

}  // namespace hawser
