// A small HTTP/1.1 server on a thread of its own: GET and HEAD of one path, one reply a connection.
//
//   HttpServer server("127.0.0.1", 9400, {.path = "/metrics", .type = "text/plain", .body = [&] { return text(); }});
//
// At most 16 connections at a time, where a new one drives out the oldest; 8 KiB a request; 5 s from the first byte to
// the last: a slow client holds up neither others nor the run. Requests are answered in the standard's way where they
// are rejected: 400, 404, 405, 431.
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
  // `address`: numeric, IPv4 or IPv6. Port 0: any that is free. UserError where it cannot listen.
  HttpServer(const std::string& address, int port, HttpPage page);
  ~HttpServer();  // returns at once; replies on their way are cut off
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
