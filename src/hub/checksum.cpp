#include "hub/checksum.h"

#include <sys/types.h>
// libmd's headers, which need those above.
#include <sha1.h>
#include <sha2.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/cat.h"

namespace hawser::hub {
namespace {

constexpr std::size_t kSha256Digits = 64, kGitDigits = 40;

bool is_hexadecimal(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string in_hexadecimal(std::span<const std::uint8_t> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const std::uint8_t byte : bytes) out += {kDigits[byte >> 4], kDigits[byte & 15]};
  return out;
}

const std::uint8_t* as_bytes(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

}  // namespace

struct Checksum::State {
  bool sha256 = true;
  SHA2_CTX large{};
  SHA1_CTX git{};
};

Checksum::Checksum(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&& other) noexcept = default;
Checksum& Checksum::operator=(Checksum&& other) noexcept = default;

std::optional<Checksum> Checksum::of_etag(const std::string& etag, std::optional<std::int64_t> bytes) {
  const bool sha256 = etag.size() == kSha256Digits;
  if (!is_hexadecimal(etag) || (!sha256 && (etag.size() != kGitDigits || !bytes))) return std::nullopt;
  auto state = std::make_unique<State>();
  state->sha256 = sha256;
  if (sha256) {
    SHA256Init(&state->large);
  } else {
    SHA1Init(&state->git);
    const std::string header = cat("blob ", *bytes, std::string(1, '\0'));
    SHA1Update(&state->git, as_bytes(header), header.size());
  }
  return Checksum(std::move(state));
}

void Checksum::add(std::string_view bytes) {
  if (state_->sha256) {
    SHA256Update(&state_->large, as_bytes(bytes), bytes.size());
  } else {
    SHA1Update(&state_->git, as_bytes(bytes), bytes.size());
  }
}

std::string Checksum::finish() {
  if (state_->sha256) {
    std::array<std::uint8_t, kSha256Digits / 2> digest{};
    SHA256Final(digest.data(), &state_->large);
    return in_hexadecimal(digest);
  }
  std::array<std::uint8_t, kGitDigits / 2> digest{};
  SHA1Final(digest.data(), &state_->git);
  return in_hexadecimal(digest);
}

}  // namespace hawser::hub
