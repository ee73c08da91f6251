#include "hub/api.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include "base/text.h"
#include "hub/file_names.h"
#include "io/json.h"

namespace hawser::hub {
namespace {

using namespace std::chrono_literals;
using net::HttpHead;
using net::NoAnswer;

constexpr int kAttempts = 6, kRedirects = 10;
constexpr std::chrono::milliseconds kFirstPause = 500ms;
constexpr char kNoRevision[] = "RevisionNotFound";
constexpr std::size_t kMaxError = 1 << 16, kMaxList = std::size_t{256} << 20;

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool may_succeed_later(long status) {
  return status == 408 || status == 429 || status >= 500;
}

// An ETag without quotes and without the mark of a weak one; "" if it cannot be a file's name.
std::string plain_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  const bool name = std::ranges::all_of(etag, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
  return name ? etag : "";
}

std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// The first byte of "bytes 100-199/200".
std::optional<std::int64_t> first_byte(const std::string& range) {
  constexpr std::string_view kUnit = "bytes ";
  if (!range.starts_with(kUnit)) return std::nullopt;
  return number_of(std::string_view(range).substr(kUnit.size(), range.find('-') - kUnit.size()));
}

std::string text_at(const io::Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

RemoteFile remote_file(const io::Json& entry) {
  RemoteFile file{.name = text_at(entry, "rfilename"),
                  .etag = plain_etag(text_at(entry, "blobId")),
                  .bytes = io::count_at(entry, "size")};
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    file.etag = plain_etag(text_at(*lfs, "sha256"));
    if (const auto bytes = io::count_at(*lfs, "size")) file.bytes = bytes;
  }
  return file;
}

}  // namespace

bool wait_before(int attempt, const std::atomic<bool>* cancelled) {
  if (attempt > kAttempts) return false;
  if (attempt == 1) return true;
  const auto end = std::chrono::steady_clock::now() + kFirstPause * (1 << (attempt - 2));
  while (std::chrono::steady_clock::now() < end) {
    if (cancelled != nullptr && *cancelled) return false;
    std::this_thread::sleep_for(50ms);
  }
  return true;
}

Api::Api(const Settings& settings, const Repo& repo, bool reached)
    : settings_(settings),
      repo_(repo),
      origin_(net::origin_of(settings.endpoint)),
      client_({.connect = 10s, .whole = 0s, .stalled = settings.stalled}),
      reached_(reached) {
  if (!origin_) {
    throw UserError(
        Problem{.file = "HF_ENDPOINT", .what = "not a URL", .expected = "https://HOST", .got = settings.endpoint});
  }
}

std::string Api::url_of(const std::string& commit, const std::string& file) const {
  return cat(settings_.endpoint, "/", repo_.prefix(), repo_.name.model, "/resolve/", commit, "/",
             net::url_encoded(file, "/"));
}

Api::Response Api::request(const net::HttpGet& get, const net::HttpClient::Receive& receive) {
  net::HttpGet next = get;
  next.headers.emplace_back("Accept-Encoding: identity");  // sizes and ranges are those of the file
  Response out;
  for (int hop = 0; hop <= kRedirects; ++hop) {
    const auto origin = net::origin_of(next.url);
    next.token = origin == origin_ ? settings_.token : "";
    out.body.clear();
    try {
      out.head = client_.get(next, [&](const HttpHead& head, std::string_view bytes) {
        if (head.status == 200 || head.status == 206) return receive(head, bytes);
        if (out.body.size() + bytes.size() <= kMaxError) out.body += bytes;
      });
    } catch (const NoAnswer& error) {
      fail(error, origin.value_or(next.url));
    }
    reached_ = true;
    if (origin == origin_) out.of_hub = out.head;
    if (!is_redirect(out.head.status) || out.head.redirect.empty()) {
      if (may_succeed_later(out.head.status) || (out.head.status >= 400 && origin != origin_)) {
        throw Interrupted(cat(origin.value_or(next.url), ": HTTP status ", out.head.status));
      }
      return out;
    }
    next.url = out.head.redirect;
  }
  throw UserError(Problem{.file = repo_.name.text(), .what = "too many redirects", .at = get.url});
}

// Of a request without a response: another attempt, or an error. A server that was reached before may come back.
void Api::fail(const net::NoAnswer& error, const std::string& server) const {
  const bool untrusted = error.why() == NoAnswer::Why::untrusted;
  const bool again = error.why() == NoAnswer::Why::broken || (reached_ && !untrusted);
  if (again) throw Interrupted(cat(server, ": ", error.what()));
  throw UserError(
      Problem{.file = repo_.name.text(),
              .what = cat("the Hub cannot be reached: ", error.what()),
              .at = server,
              .hint = untrusted ? "SSL_CERT_FILE=FILE with the certificate of the network's proxy"
                                : "HTTPS_PROXY, HF_ENDPOINT=URL of a mirror, or a copy of the cache and --offline"});
}

// A request whose response is metadata, at most a few attempts.
Api::Response Api::metadata(const net::HttpGet& get, const std::string& file) {
  std::string why;
  for (int attempt = 1; wait_before(attempt); ++attempt) {
    try {
      std::string body;
      Response response = request(get, [&](const HttpHead&, std::string_view bytes) {
        if (body.size() + bytes.size() > kMaxList) {
          throw UserError(Problem{.file = repo_.name.text(), .what = "the list of files is too large", .at = get.url});
        }
        body += bytes;
      });
      if (response.of_hub.header("x-error-code") == kNoRevision) throw NoRevision(problem_of(response, file));
      if (response.head.status != 200) throw UserError(problem_of(response, file));
      response.body = std::move(body);
      return response;
    } catch (const Interrupted& error) {
      why = error.what();
    }
  }
  throw UserError(Problem{.file = repo_.name.text(),
                          .what = cat("no answer of the Hub: ", why),
                          .hint = "again later, or HF_ENDPOINT=URL of a mirror"});
}

RemoteRepo Api::list() {
  const std::string kind = repo_.kind == RepoKind::model ? "models" : "datasets";
  const std::string url = cat(settings_.endpoint, "/api/", kind, "/", repo_.name.model, "/revision/",
                              net::url_encoded(repo_.revision()), "?blobs=true");
  const Response response = metadata({.url = url}, "");
  const io::Json answer = io::json_or_null(response.body);
  RemoteRepo out;
  const auto files = answer.is_object() ? answer.find("siblings") : answer.end();
  if (answer.is_object() && files != answer.end() && files->is_array()) {
    out.commit = text_at(answer, "sha");
    for (const auto& entry : *files) {
      RemoteFile file = entry.is_object() ? remote_file(entry) : RemoteFile{};
      if (is_safe_file_name(file.name)) out.files.push_back(std::move(file));
    }
  }
  if (!is_commit(out.commit)) {
    throw UserError(Problem{.file = repo_.name.text(),
                            .what = "not an answer of the Hub",
                            .expected = "a commit and a list of files",
                            .at = url,
                            .hint = "HF_ENDPOINT=https://huggingface.co"});
  }
  return out;
}

RemoteFile Api::describe(const std::string& commit, const std::string& file) {
  const net::HttpGet get{.url = url_of(commit, file), .head = true};
  const HttpHead head = metadata(get, file).of_hub;
  const auto header = [&](const char* linked, const char* own) {
    const std::string value = head.header(linked);
    return value.empty() ? head.header(own) : value;
  };
  const RemoteFile out{.name = file,
                       .etag = plain_etag(header("x-linked-etag", "etag")),
                       .bytes = number_of(header("x-linked-size", "content-length"))};
  if (!out.etag.empty()) return out;
  throw UserError(Problem{.file = repo_.name.text(),
                          .what = "the Hub's response has no ETag for a file",
                          .at = get.url,
                          .hint = "HF_ENDPOINT=https://huggingface.co"});
}

void Api::get(const std::string& commit, const std::string& file, Part& part, const Receive& receive) {
  net::HttpGet get{.url = url_of(commit, file)};
  if (part.from > 0) {
    get.headers.push_back(cat("Range: bytes=", part.from, "-"));
    if (!part.validator.empty()) get.headers.push_back("If-Range: " + part.validator);
  }
  const Response response = request(get, [&](const HttpHead& head, std::string_view bytes) {
    // Only a strong ETag says that all bytes are the same.
    const std::string etag = head.header("etag");
    part.validator = etag.starts_with('"') ? etag : "";
    const auto first = head.status == 206 ? first_byte(head.header("content-range")) : 0;
    if (!first || (*first != 0 && *first != part.from)) throw Interrupted("a range of other bytes than asked for");
    receive(*first, bytes);
  });
  const long status = response.head.status;
  if (status != 200 && status != 206 && status != 416) throw UserError(problem_of(response, file));
}

Problem Api::no_access(bool gated) const {
  const std::string page = cat(settings_.endpoint, "/", repo_.prefix(), repo_.name.model);
  const std::string log_in = settings_.token.empty() ? "HF_TOKEN or `hf auth login`" : "";
  if (gated) {
    return {.file = repo_.name.text(),
            .what = settings_.token.empty()
                        ? cat("a gated ", repo_.kind_name(), ", and there is no token")
                        : cat("a gated ", repo_.kind_name(), ", and the token's user has no access to it"),
            .got = settings_.token_place.empty() ? "" : "the token of " + settings_.token_place,
            .hint = cat("its terms at ", page, log_in.empty() ? "" : ", then " + log_in)};
  }
  return {.file = repo_.name.text(),
          .what = cat("no such ", repo_.kind_name(), " at ", settings_.endpoint, ", or a private one"),
          .got = settings_.token_place.empty() ? "no token" : "the token of " + settings_.token_place,
          .hint = cat("the name on its page", log_in.empty() ? "" : ", or " + log_in,
                      repo_.kind == RepoKind::model ? "; --dataset for a data set" : "")};
}

Problem Api::problem_of(const Response& response, const std::string& file) const {
  const long status = response.head.status;
  const std::string code = response.of_hub.header("x-error-code"), words = response.of_hub.header("x-error-message");
  if (code == "GatedRepo") return no_access(/*gated=*/true);
  if (code == kNoRevision) {
    return {.file = repo_.name.text(), .what = "no such branch, tag or commit", .hint = repo_.name.model};
  }
  if (code == "EntryNotFound") {
    return {.file = repo_.name.text(), .what = "no such file in this revision", .at = file};
  }
  if (status == 401 && words.find("nvalid") != words.npos && !settings_.token.empty()) {
    return {.file = settings_.token_place, .what = "the Hub rejects this token: " + words, .hint = "`hf auth login`"};
  }
  if (code == "RepoNotFound" || status == 401 || (status == 404 && file.empty())) return no_access(/*gated=*/false);
  return {.file = repo_.name.text(),
          .what = cat("HTTP status ", status, " of the Hub", words.empty() ? "" : ": " + words),
          .at = file.empty() ? settings_.endpoint : file};
}

}  // namespace hawser::hub
