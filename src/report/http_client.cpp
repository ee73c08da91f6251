#include "report/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <array>

#include "base/error.h"

namespace hawser::report {

struct HttpClient::Library {
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
};

namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw UserError(Problem{.file = "libcurl.so.4", .what = cat("no function ", name)});
}

struct Answer {
  std::string body;
  std::size_t largest = 0;
};

std::size_t receive(char* bytes, std::size_t size, std::size_t count, void* to) {
  auto& answer = *static_cast<Answer*>(to);
  if (answer.body.size() + size * count > answer.largest) return 0;  // ends the transfer
  answer.body.append(bytes, size * count);
  return size * count;
}

int cancelled(void* flag, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<std::atomic<bool>*>(flag) ? 1 : 0;
}

}  // namespace

const HttpClient::Library& HttpClient::library() {
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
    if (out.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
      throw UserError(Problem{.file = "libcurl.so.4", .what = "cannot be initialized"});
    }
    return out;
  }();
  return loaded;
}

HttpClient::HttpClient(Options options) : options_(std::move(options)) {
  handle_ = library().init();
  if (handle_ == nullptr) throw UserError(Problem{.file = "libcurl.so.4", .what = "cannot be initialized"});
}

HttpClient::~HttpClient() {
  library().cleanup(handle_);
}

HttpAnswer HttpClient::send(const std::string& url, const std::string& body) {
  if (cancelled_) throw NoAnswer("cancelled");
  const Library& curl = library();
  curl.reset(handle_);
  Answer answer{.largest = options_.largest};
  std::array<char, CURL_ERROR_SIZE> error{};
  curl.set(handle_, CURLOPT_URL, url.c_str());
  curl.set(handle_, CURLOPT_PROTOCOLS_STR, "http,https");
  curl.set(handle_, CURLOPT_NOSIGNAL, 1L);
  curl.set(handle_, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect.count()));
  curl.set(handle_, CURLOPT_TIMEOUT_MS, static_cast<long>(options_.whole.count()));
  curl.set(handle_, CURLOPT_ERRORBUFFER, error.data());
  curl.set(handle_, CURLOPT_WRITEFUNCTION, receive);
  curl.set(handle_, CURLOPT_WRITEDATA, &answer);
  curl.set(handle_, CURLOPT_NOPROGRESS, 0L);
  curl.set(handle_, CURLOPT_XFERINFOFUNCTION, cancelled);
  curl.set(handle_, CURLOPT_XFERINFODATA, &cancelled_);
  if (!options_.token.empty()) {
    curl.set(handle_, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    curl.set(handle_, CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
  } else if (!options_.user.empty()) {
    curl.set(handle_, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    curl.set(handle_, CURLOPT_USERNAME, options_.user.c_str());
    curl.set(handle_, CURLOPT_PASSWORD, options_.password.c_str());
  }
  curl_slist* headers = nullptr;
  if (!body.empty()) {
    headers = curl.append(headers, "Content-Type: application/json");
    headers = curl.append(headers, "Expect:");  // no wait for "100 Continue"
    curl.set(handle_, CURLOPT_HTTPHEADER, headers);
    curl.set(handle_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl.set(handle_, CURLOPT_POSTFIELDS, body.c_str());
  }
  const CURLcode code = curl.perform(handle_);
  curl.free_all(headers);
  if (code == CURLE_WRITE_ERROR) throw NoAnswer("the response is too large");
  if (code != CURLE_OK) throw NoAnswer(error[0] != 0 ? error.data() : curl.error(code));
  HttpAnswer out{.body = std::move(answer.body)};
  curl.info(handle_, CURLINFO_RESPONSE_CODE, &out.status);
  return out;
}

}  // namespace hawser::report
