// `HttpClient`: HTTP and HTTPS requests through libcurl, one at a time. The library is loaded when the first client is
// created; a run without one does not need it.
//
//   HttpClient client({.stalled = std::chrono::seconds(30)});
//   const HttpHead head = client.get({.url = url, .token = token}, [&](const HttpHead& answer, std::string_view part) {
//     if (answer.status == 200) file.write(part);
//   });
//
// Redirects are not followed: the caller decides what the next server is sent. HTTPS_PROXY, HTTP_PROXY and NO_PROXY
// name proxies, SSL_CERT_FILE or CURL_CA_BUNDLE a file of certificates. A request without a complete response throws
// NoAnswer; without libcurl, the constructor throws UserError.
//
// Source: https://curl.se/libcurl/c/
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::net {

struct HttpAnswer {
  long status = 0;  // 200
  std::string body;
};

// The status and the headers of a response.
struct HttpHead {
  long status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string redirect;                        // absolute URL; "" if the response is no redirect

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found != headers.end() ? found->second : "";
  }
};

// No complete response arrived.
class NoAnswer : public std::runtime_error {
 public:
  enum class Why {
    unreachable,  // no connection
    untrusted,    // the server's certificate
    broken,       // the connection broke, stalled, or took too long
  };
  explicit NoAnswer(const std::string& what, Why why = Why::broken) : std::runtime_error(what), why_(why) {}
  Why why() const { return why_; }

 private:
  Why why_;
};

struct HttpGet {
  std::string url;
  std::string token = {};                 // sent as Authorization: Bearer
  std::vector<std::string> headers = {};  // "Range: bytes=10-"
  bool head = false;                      // a HEAD request, whose response has no body
};

class HttpClient {
 public:
  struct Options {
    std::chrono::milliseconds connect{5000}, whole{10000};  // limits; a whole of 0 is none
    std::optional<std::chrono::seconds> stalled;            // a transfer that is as long below 1 KiB/s ends
    std::size_t largest = 1 << 20;                          // maximum bytes of a response, for send()
    std::string token;                                      // of send(), as Authorization: Bearer
    std::string user, password;                             // or Basic authentication, if `user` is set
  };
  // UserError if libcurl is not installed.
  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // GET if `body` is empty, else POST with a JSON body. Not thread-safe.
  HttpAnswer send(const std::string& url, const std::string& body = "");

  // Gives the body to `receive` piece by piece; what it throws ends the request and is thrown here. Not thread-safe.
  using Receive = std::function<void(const HttpHead& head, std::string_view bytes)>;
  HttpHead get(const HttpGet& request, const Receive& receive);

  // From any thread: the request in progress and all later ones throw NoAnswer.
  void cancel() { cancelled_ = true; }

 private:
  void prepare(const std::string& url, char* error);
  void perform(const char* error);

  Options options_;
  void* handle_ = nullptr;
  std::atomic<bool> cancelled_{false};
};

// "https://host:443" of a URL, read as libcurl reads it: what two URLs have in common that are of one server. nullopt
// for what is no URL of HTTP or HTTPS, or has a user name.
std::optional<std::string> origin_of(const std::string& url);

// Text as a part of a URL's path or query: all but letters, digits and -._~ as %XX, and `kept` as it is.
std::string url_encoded(std::string_view text, std::string_view kept = "");

}  // namespace hawser::net
