#include "net/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <memory>

#include "base/build.h"
#include "base/environment.h"
#include "base/error.h"

namespace hawser::net {
namespace {

struct Library {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) init;
  decltype(&curl_easy_reset) reset;
  decltype(&curl_easy_setopt) set;
  decltype(&curl_easy_perform) perform;
  decltype(&curl_easy_getinfo) info;
  decltype(&curl_easy_cleanup) cleanup;
  decltype(&curl_easy_strerror) error;
  decltype(&curl_slist_append) append;
  decltype(&curl_slist_free_all) free_all;
  decltype(&curl_url) url;
  decltype(&curl_url_set) url_set;
  decltype(&curl_url_get) url_get;
  decltype(&curl_url_cleanup) url_cleanup;
  decltype(&curl_free) free;
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw UserError(Problem{.file = "libcurl.so.4", .what = cat("no function ", name)});
}

const Library& library() {
  static const Library loaded = [] {
    void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw UserError(Problem{.file = "libcurl.so.4", .what = "not found", .hint = "installing libcurl4"});
    }
    Library out{};
    find(library, "curl_global_init", out.global_init);
    find(library, "curl_easy_init", out.init);
    find(library, "curl_easy_reset", out.reset);
    find(library, "curl_easy_setopt", out.set);
    find(library, "curl_easy_perform", out.perform);
    find(library, "curl_easy_getinfo", out.info);
    find(library, "curl_easy_cleanup", out.cleanup);
    find(library, "curl_easy_strerror", out.error);
    find(library, "curl_slist_append", out.append);
    find(library, "curl_slist_free_all", out.free_all);
    find(library, "curl_url", out.url);
    find(library, "curl_url_set", out.url_set);
    find(library, "curl_url_get", out.url_get);
    find(library, "curl_url_cleanup", out.url_cleanup);
    find(library, "curl_free", out.free);
    if (out.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
      throw UserError(Problem{.file = "libcurl.so.4", .what = "cannot be initialized"});
    }
    return out;
  }();
  return loaded;
}

// A list of headers.
class Headers {
 public:
  Headers() = default;
  ~Headers() { library().free_all(list_); }
  Headers(const Headers&) = delete;
  Headers& operator=(const Headers&) = delete;
  void add(const std::string& header) { list_ = library().append(list_, header.c_str()); }
  curl_slist* list() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

struct Answer {
  std::string body;
  std::size_t largest = 0;
};

std::size_t receive_answer(char* bytes, std::size_t size, std::size_t count, void* to) {
  auto& answer = *static_cast<Answer*>(to);
  if (answer.body.size() + size * count > answer.largest) return 0;  // ends the transfer
  answer.body.append(bytes, size * count);
  return size * count;
}

// A response that arrives, and the exception that ended it.
struct Arriving {
  void* handle;
  const HttpClient::Receive& receive;
  HttpHead head = {};
  std::exception_ptr thrown = {};
};

std::size_t receive_header(char* bytes, std::size_t size, std::size_t count, void* to) {
  auto& head = static_cast<Arriving*>(to)->head;
  const std::string_view line(bytes, size * count);
  if (line.starts_with("HTTP/")) head = {};  // those before are of a proxy, or of status 100
  const auto colon = line.find(':');
  if (colon == line.npos) return line.size();
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto begin = line.find_first_not_of(" \t", colon + 1), end = line.find_last_not_of(" \t\r\n");
  head.headers[name] = begin == line.npos || end < begin ? "" : std::string(line.substr(begin, end + 1 - begin));
  return line.size();
}

std::size_t receive_body(char* bytes, std::size_t size, std::size_t count, void* to) {
  auto& arriving = *static_cast<Arriving*>(to);
  try {
    library().info(arriving.handle, CURLINFO_RESPONSE_CODE, &arriving.head.status);
    arriving.receive(arriving.head, {bytes, size * count});
    return size * count;
  } catch (...) {  // must not pass through libcurl
    arriving.thrown = std::current_exception();
    return 0;
  }
}

int cancelled(void* flag, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<std::atomic<bool>*>(flag) ? 1 : 0;
}

NoAnswer::Why why_of(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return NoAnswer::Why::unreachable;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return NoAnswer::Why::untrusted;
    default:
      return NoAnswer::Why::broken;
  }
}

constexpr std::size_t kErrorBytes = CURL_ERROR_SIZE;

}  // namespace

HttpClient::HttpClient(Options options) : options_(std::move(options)) {
  handle_ = library().init();
  if (handle_ == nullptr) throw UserError(Problem{.file = "libcurl.so.4", .what = "cannot be initialized"});
}

HttpClient::~HttpClient() {
  library().cleanup(handle_);
}

// What all requests have. The connection of the last one is used again.
void HttpClient::prepare(const std::string& url, char* error) {
  if (cancelled_) throw NoAnswer("cancelled");
  const Library& curl = library();
  curl.reset(handle_);
  curl.set(handle_, CURLOPT_URL, url.c_str());
  curl.set(handle_, CURLOPT_PROTOCOLS_STR, "http,https");
  curl.set(handle_, CURLOPT_NOSIGNAL, 1L);
  curl.set(handle_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect.count()));
  curl.set(handle_, CURLOPT_TIMEOUT_MS, static_cast<long>(options_.whole.count()));
  if (options_.stalled) {
    curl.set(handle_, CURLOPT_LOW_SPEED_LIMIT, 1024L);
    curl.set(handle_, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stalled->count()));
  }
  curl.set(handle_, CURLOPT_USERAGENT, cat("hawser/", build().version).c_str());
  for (const char* variable : {"SSL_CERT_FILE", "CURL_CA_BUNDLE"}) {
    const std::string file = environment_variable(variable);
    if (!file.empty()) curl.set(handle_, CURLOPT_CAINFO, file.c_str());
  }
  curl.set(handle_, CURLOPT_ERRORBUFFER, error);
  curl.set(handle_, CURLOPT_NOPROGRESS, 0L);
  curl.set(handle_, CURLOPT_XFERINFOFUNCTION, cancelled);
  curl.set(handle_, CURLOPT_XFERINFODATA, &cancelled_);
}

void HttpClient::perform(const char* error) {
  const CURLcode code = library().perform(handle_);
  if (code == CURLE_OK) return;
  const std::string what = code == CURLE_WRITE_ERROR ? "the response is too large"
                           : *error != 0             ? error
                                                     : library().error(code);
  throw NoAnswer(what, why_of(code));
}

HttpAnswer HttpClient::send(const std::string& url, const std::string& body) {
  std::array<char, kErrorBytes> error{};
  prepare(url, error.data());
  const Library& curl = library();
  Answer answer{.largest = options_.largest};
  curl.set(handle_, CURLOPT_WRITEFUNCTION, receive_answer);
  curl.set(handle_, CURLOPT_WRITEDATA, &answer);
  if (!options_.token.empty()) {
    curl.set(handle_, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    curl.set(handle_, CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
  } else if (!options_.user.empty()) {
    curl.set(handle_, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    curl.set(handle_, CURLOPT_USERNAME, options_.user.c_str());
    curl.set(handle_, CURLOPT_PASSWORD, options_.password.c_str());
  }
  Headers headers;
  if (!body.empty()) {
    headers.add("Content-Type: application/json");
    headers.add("Expect:");  // no wait for "100 Continue"
    curl.set(handle_, CURLOPT_HTTPHEADER, headers.list());
    curl.set(handle_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl.set(handle_, CURLOPT_POSTFIELDS, body.c_str());
  }
  perform(error.data());
  HttpAnswer out{.body = std::move(answer.body)};
  curl.info(handle_, CURLINFO_RESPONSE_CODE, &out.status);
  return out;
}

HttpHead HttpClient::get(const HttpGet& request, const Receive& receive) {
  std::array<char, kErrorBytes> error{};
  prepare(request.url, error.data());
  const Library& curl = library();
  Arriving arriving{.handle = handle_, .receive = receive};
  curl.set(handle_, CURLOPT_WRITEFUNCTION, receive_body);
  curl.set(handle_, CURLOPT_WRITEDATA, &arriving);
  curl.set(handle_, CURLOPT_HEADERFUNCTION, receive_header);
  curl.set(handle_, CURLOPT_HEADERDATA, &arriving);
  if (request.head) curl.set(handle_, CURLOPT_NOBODY, 1L);
  if (!request.token.empty()) {
    curl.set(handle_, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    curl.set(handle_, CURLOPT_XOAUTH2_BEARER, request.token.c_str());
  }
  Headers headers;
  for (const std::string& header : request.headers) headers.add(header);
  curl.set(handle_, CURLOPT_HTTPHEADER, headers.list());
  try {
    perform(error.data());
  } catch (const NoAnswer&) {
    if (arriving.thrown) std::rethrow_exception(arriving.thrown);
    throw;
  }
  curl.info(handle_, CURLINFO_RESPONSE_CODE, &arriving.head.status);
  const char* redirect = nullptr;
  curl.info(handle_, CURLINFO_REDIRECT_URL, &redirect);
  if (redirect != nullptr) arriving.head.redirect = redirect;
  return std::move(arriving.head);
}

std::optional<std::string> origin_of(const std::string& url) {
  const Library& curl = library();
  const std::unique_ptr<CURLU, decltype(curl.url_cleanup)> parsed(curl.url(), curl.url_cleanup);
  if (parsed == nullptr || curl.url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return std::nullopt;
  const auto part = [&](CURLUPart which) {
    char* text = nullptr;
    if (curl.url_get(parsed.get(), which, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return std::string();
    std::string out = text;
    curl.free(text);
    std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
  };
  const std::string scheme = part(CURLUPART_SCHEME), host = part(CURLUPART_HOST);
  if ((scheme != "http" && scheme != "https") || host.empty() || !part(CURLUPART_USER).empty()) return std::nullopt;
  return cat(scheme, "://", host, ":", part(CURLUPART_PORT));
}

std::string url_encoded(std::string_view text, std::string_view kept) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  constexpr std::string_view kPlain = "-._~";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter || kPlain.find(c) != kPlain.npos || kept.find(c) != kept.npos) {
      out += c;
    } else {
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

}  // namespace hawser::net
