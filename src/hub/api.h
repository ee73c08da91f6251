// `Api`: the HTTP API of the Hub, for one repo. It lists the files of a revision and gets their contents.
//
//   GET ENDPOINT/api/models/ORG/NAME/revision/main?blobs=true    {"sha": COMMIT, "siblings": [{"rfilename": ...}]}
//   GET ENDPOINT/ORG/NAME/resolve/COMMIT/FILE                    the content, or a redirect to a server that has it
//
// Redirects are followed here. The token is sent to the endpoint's own scheme, host and port, and to no other server.
// A response that asks for another attempt (status 408, 429, 500 to 599) or that breaks is asked for again, after 0.5,
// 1, 2, 4, ... seconds; any other failure is a UserError of one line.
//
// Source: https://huggingface.co/docs/hub/api
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "hub/cache.h"
#include "hub/hub_settings.h"
#include "net/http_client.h"

namespace hawser::hub {

struct RemoteFile {
  std::string name;
  std::string etag;                   // names its blob; "" if the list of files does not have it
  std::optional<std::int64_t> bytes;  // nullopt if the list does not have them
};

struct RemoteRepo {
  std::string commit;
  std::vector<RemoteFile> files;
};

// A failure after which another attempt may succeed.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The repo has no such branch, tag or commit.
class NoRevision : public UserError {
 public:
  using UserError::UserError;
};

class Api {
 public:
  // `reached`: another Api has reached the Hub, which a failure to connect does not make an error of the settings.
  Api(const Settings& settings, const Repo& repo, bool reached = false);

  // The files of the repo's revision.
  RemoteRepo list();
  // ETag and size of a file, as its response says.
  RemoteFile describe(const std::string& commit, const std::string& file);

  // One attempt to get a file's content from byte `from` on. `validator`: the ETag of the server at an earlier attempt,
  // "" without one; it then sends the rest only of the same content. Set for the next attempt. `receive` gets the first
  // byte that arrives, which is 0 if the server sends the whole file, and the bytes. Throws Interrupted.
  struct Part {
    std::int64_t from = 0;
    std::string validator;
  };
  using Receive = std::function<void(std::int64_t first, std::string_view bytes)>;
  void get(const std::string& commit, const std::string& file, Part& part, const Receive& receive);

  // Ends the request in progress, from any thread.
  void cancel() { client_.cancel(); }

 private:
  struct Response {
    net::HttpHead head;    // of the last server
    net::HttpHead of_hub;  // of the endpoint
    std::string body;      // of an error or of metadata
  };
  Response request(const net::HttpGet& get, const net::HttpClient::Receive& receive);
  Response metadata(const net::HttpGet& get, const std::string& file);
  [[noreturn]] void fail(const net::NoAnswer& error, const std::string& server) const;
  std::string url_of(const std::string& commit, const std::string& file) const;
  Problem problem_of(const Response& response, const std::string& file) const;
  Problem no_access(bool gated) const;

  Settings settings_;
  Repo repo_;
  std::optional<std::string> origin_;
  net::HttpClient client_;
  bool reached_;
};

// Waits before attempt 2, 3, ... ; false when there were enough, or when it is cancelled.
bool wait_before(int attempt, const std::atomic<bool>* cancelled = nullptr);

}  // namespace hawser::hub
