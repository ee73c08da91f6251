// `CommonRun`: fast path of `Scanner` for the match of most words: an optional lead byte (a space), then a run of bytes
// of one range (letters), up to a byte that ends the match. It compares 16 bytes at once instead of taking a step per
// character. The bytes are derived from the scanner's automaton, which finds all other matches.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace hawser::text {

struct CommonRun {
  static constexpr std::size_t kBlock = 16;    // bytes that find() reads
  static constexpr std::uint8_t kNoLead = 64;  // in lead: a match that starts with this byte has another form

  // A byte b is in the run if (b | fold) is in [first, first + count).
  std::uint8_t fold = 0, first = 0, count = 0;  // count 0: the scanner has no such match
  std::array<std::uint8_t, 256> lead{};         // 0: b is in the run; 1: the run may follow b; or kNoLead
  std::array<std::uint8_t, 256> ends{};         // 1: a match that reaches b through the run ends before it

  bool has(std::uint8_t byte) const { return static_cast<std::uint8_t>((byte | fold) - first) < count; }

  // Length of the match at the start of text[0, kBlock), or 0 if the automaton must find it. Requires count > 0. Always
  // 0 without SSE2.
  std::size_t find(const char* text) const {
#ifdef __SSE2__
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text));
    const __m128i folded = _mm_or_si128(bytes, _mm_set1_epi8(static_cast<char>(fold)));
    const __m128i above = _mm_sub_epi8(folded, _mm_set1_epi8(static_cast<char>(first)));
    const __m128i inside = _mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8(static_cast<char>(count - 1))), above);
    const std::uint32_t before = lead[static_cast<std::uint8_t>(text[0])];
    const auto taken = static_cast<std::uint32_t>(_mm_movemask_epi8(inside)) | (before & 1);
    const auto length = static_cast<std::uint32_t>(std::countr_one(taken));
    // One branch for all other cases. They include a run that fills the block: the byte after it is not loaded.
    const bool known = (length > before) & (length < kBlock) & ends[static_cast<std::uint8_t>(text[length & 15])];
    return known ? length : 0;
#else
    static_cast<void>(text);
    return 0;
#endif
  }
};

}  // namespace hawser::text
