#include "report/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <vector>

#include "base/error.h"

namespace hawser::report {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kConnections = 16, kLargestRequest = 8 << 10;
constexpr std::chrono::seconds kDeadline{5};
constexpr int kBacklog = 16;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address address_of(const std::string& text, int port) {
  Address out;
  auto* four = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(static_cast<std::uint16_t>(port));
    out.size = sizeof *four;
  } else if (inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<std::uint16_t>(port));
    out.size = sizeof *six;
  }
  return out;
}

int port_of(int listener) {
  Address at;
  at.size = sizeof at.storage;
  if (getsockname(listener, at.get(), &at.size) != 0) return 0;
  // The port is at the same offset in both families.
  return ntohs(reinterpret_cast<sockaddr_in*>(&at.storage)->sin_port);
}

int listen_at(const std::string& text, int port) {
  Address at = address_of(text, port);
  const std::string place = cat(text, ":", port);
  if (at.size == 0) throw UserError(Problem{.file = text, .what = "not an IP address"});
  const int listener = ::socket(at.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int yes = 1;
  if (listener >= 0) ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (listener < 0 || ::bind(listener, at.get(), at.size) != 0 || ::listen(listener, kBacklog) != 0) {
    const int error = errno;
    if (listener >= 0) ::close(listener);
    throw UserError(
        Problem{.file = place,
                .what = error == EADDRINUSE ? "address already in use" : cat("cannot listen: ", std::strerror(error)),
                .hint = "another report.prometheus_port"});
  }
  return listener;
}

std::string reply(const char* status, const std::string& type, const std::string& body, bool head = false,
                  const char* more = "") {
  return cat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
             "\r\nConnection: close\r\n", more, "\r\n", head ? "" : body);
}

std::string rejection(const char* status, const char* more = "") {
  return reply(status, "text/plain; charset=utf-8", cat(status, "\n"), false, more);
}

}  // namespace

struct HttpServer::Connection {
  int socket = -1;
  Clock::time_point deadline;
  std::string request, reply;
  std::size_t sent = 0;
  bool over = false;

  Connection(int of, Clock::time_point until) : socket(of), deadline(until) {}
  ~Connection() { ::close(socket); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool replying() const { return !reply.empty(); }

  // Reads available bytes; true if the request is complete or exceeds the limit.
  bool receive() {
    char bytes[4096];
    const ssize_t count = ::recv(socket, bytes, sizeof bytes, 0);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) over = true;
    if (count <= 0) return false;
    request.append(bytes, static_cast<std::size_t>(count));
    return request.find("\r\n\r\n") != std::string::npos || request.size() > kLargestRequest;
  }

  void send() {
    const ssize_t count = ::send(socket, reply.data() + sent, reply.size() - sent, MSG_NOSIGNAL);
    if (count < 0) {
      over = errno != EAGAIN && errno != EINTR;
      return;
    }
    sent += static_cast<std::size_t>(count);
    if (sent < reply.size()) return;
    ::shutdown(socket, SHUT_WR);
    over = true;
  }
};

HttpServer::HttpServer(const std::string& address, int port, HttpPage page) : page_(std::move(page)) {
  listener_ = listen_at(address, port);
  port_ = port_of(listener_);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) {
    ::close(listener_);
    throw UserError(Problem{.file = address, .what = cat("cannot create an eventfd: ", std::strerror(errno))});
  }
  thread_ = std::thread([this] { serve(); });
}

HttpServer::~HttpServer() {
  const std::uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) == sizeof one) thread_.join();
  ::close(listener_);
  ::close(wake_);
}

std::string HttpServer::reply_to(const std::string& request) const {
  if (request.size() > kLargestRequest) return rejection("431 Request Header Fields Too Large");
  const std::string line = request.substr(0, request.find("\r\n"));
  const std::size_t first = line.find(' '), second = line.find(' ', first + 1);
  if (first == std::string::npos || second == std::string::npos || !line.substr(second + 1).starts_with("HTTP/1.")) {
    return rejection("400 Bad Request");
  }
  const std::string method = line.substr(0, first);
  std::string path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  if (path != page_.path) return rejection("404 Not Found");
  if (method != "GET" && method != "HEAD") return rejection("405 Method Not Allowed", "Allow: GET, HEAD\r\n");
  return reply("200 OK", page_.type, page_.body(), method == "HEAD");
}

void HttpServer::serve() {
  std::list<Connection> connections;
  while (true) {
    std::vector<pollfd> polled{{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    const auto now = Clock::now();
    auto next = now + kDeadline;
    for (const Connection& c : connections) {
      polled.push_back({c.socket, static_cast<short>(c.replying() ? POLLOUT : POLLIN), 0});
      next = std::min(next, c.deadline);
    }
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(next - now).count() + 1;
    if (::poll(polled.data(), polled.size(), connections.empty() ? -1 : static_cast<int>(std::max<long>(wait, 0))) <
            0 &&
        errno != EINTR) {
      return;
    }
    if (polled[0].revents != 0) return;
    std::size_t at = 2;
    for (Connection& c : connections) {
      const short events = polled[at++].revents;
      if (events == 0) continue;
      if (!c.replying() && c.receive()) c.reply = reply_to(c.request);
      if (c.replying()) c.send();
    }
    const auto after = Clock::now();
    connections.remove_if([&](const Connection& c) { return c.over || after >= c.deadline; });
    if (polled[1].revents == 0) continue;
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) {
      // Out of file descriptors: the connection stays queued, and poll would return at once again and again.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    if (connections.size() >= kConnections) connections.pop_front();
    connections.emplace_back(socket, after + kDeadline);
  }
}

}  // namespace hawser::report
