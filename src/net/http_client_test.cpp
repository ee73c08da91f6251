// URLs; requests are tested where they are sent (hub, report).
#include "net/http_client.h"

#include <gtest/gtest.h>

namespace hawser::net {
namespace http_client_test {

TEST(HttpClient, TheOriginOfAUrlIsItsServer) {
  EXPECT_EQ(origin_of("https://Huggingface.co/a/b?c"), "https://huggingface.co:443");
  EXPECT_EQ(origin_of("https://huggingface.co:443"), origin_of("https://huggingface.co/x"));
  EXPECT_EQ(origin_of("http://127.0.0.1:8080/"), "http://127.0.0.1:8080");
  for (const char* other : {"http://huggingface.co/", "https://huggingface.co:444/", "https://cdn.huggingface.co/",
                            "https://huggingface.co.evil.org/", "https://evil.org/huggingface.co"}) {
    EXPECT_NE(origin_of(other), origin_of("https://huggingface.co/")) << other;
  }
  for (const char* none : {"", "huggingface.co", "ftp://huggingface.co/", "https://huggingface.co@evil.org/",
                           "https://user:word@huggingface.co/", "file:///etc/passwd"}) {
    EXPECT_FALSE(origin_of(none)) << none;
  }
}

TEST(HttpClient, EncodesTextForUrls) {
  EXPECT_EQ(url_encoded("refs/pr/1"), "refs%2Fpr%2F1");
  EXPECT_EQ(url_encoded("a b/c+d~é.txt", "/"), "a%20b/c%2Bd~%C3%A9.txt");
}

}  // namespace http_client_test
}  // namespace hawser::net
