// A small HTTP/1.1 server on a thread of its own: GET and HEAD of one path, one reply per connection.
//
//   HttpServer server("127.0.0.1", 9400, {.path = "/metrics", .type = "text/plain", .body = [&] { return text(); }});
//
// Limits: 16 connections, a new one closes the oldest; 8 KiB per request; 5 s from the first byte to the last. A slow
// client delays neither other clients nor the run. Rejected requests get the standard status: 400, 404, 405, 431.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace hawser::report {

struct HttpPage {
  std::string path;  // "/metrics"
  std::string type;  // Content-Type
  // Called on the server's thread.
  std::function<std::string()> body;
};

class HttpServer {
 public:
  // `address`: numeric, IPv4 or IPv6. Port 0: any free port. UserError if it cannot listen.
  HttpServer(const std::string& address, int port, HttpPage page);
  ~HttpServer();  // returns at once; open replies are cut off
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }

 private:
  struct Connection;
  void serve();
  std::string reply_to(const std::string& request) const;

  HttpPage page_;
  int listener_ = -1, wake_ = -1;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace hawser::report
