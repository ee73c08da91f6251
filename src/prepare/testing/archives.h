// For tests: creates gzip and Zstandard archives in memory.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>

namespace hawser::prepare {

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// With a checksum, as the zstd tool writes it.
inline std::string zstd(const std::string& text, int window_log = 0) {
  std::string out(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  if (window_log > 0) {
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  }
  // Streamed without a known size, so that the encoder does not shrink the window.
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  ZSTD_inBuffer from{text.data(), text.size(), 0};
  ZSTD_compressStream2(context, &to, &from, ZSTD_e_continue);
  ZSTD_compressStream2(context, &to, &from, ZSTD_e_end);
  out.resize(to.pos);
  ZSTD_freeCCtx(context);
  return out;
}

}  // namespace hawser::prepare
