// HTTP and HTTPS requests through libcurl. The library is loaded when the first client is created; a run without one
// does not need it.
#pragma once

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

namespace hawser::report {

struct HttpAnswer {
  long status = 0;  // 200
  std::string body;
};

// No complete response arrived.
class NoAnswer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class HttpClient {
 public:
  struct Options {
    std::chrono::milliseconds connect{5000}, whole{10000};  // limits
    std::size_t largest = 1 << 20;                          // maximum bytes of a response
    std::string token;                                      // sent as Authorization: Bearer
    std::string user, password;                             // or Basic authentication, if `user` is set
  };
  // UserError if libcurl is not installed.
  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // GET if `body` is empty, else POST with a JSON body. Redirects are not followed. Throws NoAnswer with the reason.
  // Not thread-safe.
  HttpAnswer send(const std::string& url, const std::string& body = "");
  // From any thread: the request in progress and all later ones throw NoAnswer.
  void cancel() { cancelled_ = true; }

 private:
  struct Library;
  static const Library& library();

  Options options_;
  void* handle_ = nullptr;
  std::atomic<bool> cancelled_{false};
};

}  // namespace hawser::report
