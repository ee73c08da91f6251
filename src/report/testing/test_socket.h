// Sockets for tests: a client, and a server with scripted replies.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace hawser::report {

inline sockaddr_in loopback(int port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  return at;
}

// A connection to `port` of this machine, or -1. The caller closes it.
inline int connect_to(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  const sockaddr_in at = loopback(port);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) return socket;
  ::close(socket);
  return -1;
}

// All bytes until the peer closes the connection, for at most `seconds`.
inline std::string receive_all(int socket, int seconds = 10) {
  const timeval limit{seconds, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  std::string out;
  char bytes[4096];
  for (ssize_t count = 0; (count = ::recv(socket, bytes, sizeof bytes, 0)) > 0;) {
    out.append(bytes, static_cast<std::size_t>(count));
  }
  return out;
}

inline std::string ask(int port, const std::string& request) {
  const int socket = connect_to(port);
  if (socket < 0) return "";
  if (::send(socket, request.data(), request.size(), MSG_NOSIGNAL) < 0) return ::close(socket), "";
  const std::string out = receive_all(socket);
  ::close(socket);
  return out;
}

// Serves one connection after another on a thread of its own.
class FakeServer {
 public:
  struct Request {
    std::string line, body;  // "POST /api HTTP/1.1"
  };
  // Returns the reply, sent as is; "": no reply, and the connection stays open until the server ends.
  using Answer = std::function<std::string(const Request&)>;

  explicit FakeServer(Answer answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at = loopback(0);
    HAWSER_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0, "bind");
    HAWSER_CHECK(::listen(listener_, 16) == 0, "listen");
    socklen_t size = sizeof at;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeServer() {
    ended_ = true;
    ::close(connect_to(port_));  // wakes accept
    thread_.join();
    ::close(listener_);
    for (const int socket : held_) ::close(socket);
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    while (true) {
      const int socket = ::accept(listener_, nullptr, nullptr);
      if (ended_) return static_cast<void>(::close(socket));
      const Request request = read(socket);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        requests_.push_back(request);
      }
      const std::string answer = answer_(request);
      if (answer.empty()) {
        held_.push_back(socket);
        continue;
      }
      ::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(socket);
    }
  }

  static Request read(int socket) {
    std::string all;
    char bytes[4096];
    std::size_t whole = std::string::npos;
    while (all.size() < whole) {
      const ssize_t count = ::recv(socket, bytes, sizeof bytes, 0);
      if (count <= 0) break;
      all.append(bytes, static_cast<std::size_t>(count));
      const std::size_t head = all.find("\r\n\r\n"), length = all.find("Content-Length: ");
      if (head == std::string::npos) continue;
      whole = head + 4 + (length < head ? std::stoul(all.substr(length + 16)) : 0);
    }
    const std::size_t head = all.find("\r\n\r\n");
    return {all.substr(0, all.find("\r\n")), head == std::string::npos ? "" : all.substr(head + 4)};
  }

  Answer answer_;
  int listener_ = -1, port_ = 0;
  std::vector<int> held_;
  mutable std::mutex mutex_;
  std::vector<Request> requests_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

inline std::string http_answer(int status, const std::string& body) {
  return cat("HTTP/1.1 ", status, " X\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n", body);
}

}  // namespace hawser::report
