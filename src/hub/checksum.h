// `Checksum`: the checksum that names a file of the Hub, computed while the file arrives.
//
//   large files (LFS, Xet)   SHA-256 of the content, 64 hexadecimal digits
//   other files              git's blob id, 40 digits: SHA-1 of "blob BYTES\0" and the content
//
// Sources: https://huggingface.co/docs/huggingface_hub/guides/manage-cache,
// https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hawser::hub {

class Checksum {
 public:
  // For a file whose ETag is `etag`; nullopt if the ETag is no checksum, or is git's and the size is unknown.
  static std::optional<Checksum> of_etag(const std::string& etag, std::optional<std::int64_t> bytes);

  ~Checksum();
  Checksum(Checksum&& other) noexcept;
  Checksum& operator=(Checksum&& other) noexcept;

  void add(std::string_view bytes);
  // In hexadecimal. The last call.
  std::string finish();

 private:
  struct State;
  explicit Checksum(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace hawser::hub
