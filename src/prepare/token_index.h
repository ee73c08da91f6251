// Header of a token file's index, see token_file.h. Internal to its reader and writer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hawser::prepare::token_index {

inline constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr std::size_t kHeader = sizeof kMagic + 8 + 1 + 8 + 8;
inline constexpr std::uint8_t kInt32 = 4, kUint16 = 8;
inline constexpr std::int64_t kNarrowVocabulary = 65500;

}  // namespace hawser::prepare::token_index
