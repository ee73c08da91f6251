// HTTP and HTTPS requests through libcurl, which is loaded when the first client is made: a run that needs none does
// without it.
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

// No whole answer came.
class NoAnswer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class HttpClient {
 public:
  struct Options {
    std::chrono::milliseconds connect{5000}, whole{10000};  // at most
    std::size_t largest = 1 << 20;                          // bytes of an answer
    std::string token;                                      // sent as Authorization: Bearer
    std::string user, password;                             // or as Basic, where `user` is set
  };
  // UserError where there is no libcurl.
  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // `body` "": GET; else POST, as JSON. Redirects are not followed. Throws NoAnswer, with the reason. One thread.
  HttpAnswer send(const std::string& url, const std::string& body = "");
  // From any thread: what is on its way ends with NoAnswer, and so does all that follows.
  void cancel() { cancelled_ = true; }

 private:
  struct Library;
  static const Library& library();

  Options options_;
  void* handle_ = nullptr;
  std::atomic<bool> cancelled_{false};
};

}  // namespace hawser::report
