#include "base/printable.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/utf8.h"

namespace hawser {
namespace printable_test {

TEST(Printable, KeepsOrdinaryText) {
  for (const char* text : {"", "loss 3.5", "naïve Größe", "日本語", "👍 ok", "\u200d joined"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(printable("\033[31mred\033[0m"), "^[[31mred^[[0m");
  EXPECT_EQ(printable("bell\a back\b del\x7f nul" + std::string(1, '\0')), "bell^G back^H del^? nul^@");
  EXPECT_EQ(printable("csi \xc2\x9b"
                      "2J"),
            "csi <U+009B>2J");                               // C1: one character, no ESC
  EXPECT_EQ(printable("gpj.exe\u202e"), "gpj.exe<U+202E>");  // right-to-left override
  EXPECT_EQ(printable("\u2066a\u2069 \u061c \u200f"), "<U+2066>a<U+2069> <U+061C> <U+200F>");
  EXPECT_EQ(printable("a\u2028b"), "a<U+2028>b");
  EXPECT_EQ(printable("\x9b"
                      "31m \xff \xed\xa0\x80"),
            "\ufffd31m \ufffd \ufffd\ufffd\ufffd");
}

TEST(Printable, MakesOneLineUnlessNewlinesAreKept) {
  EXPECT_EQ(printable("a\nb\r\nc\td"), "a b  c d");
  EXPECT_EQ(printable("a\nb\r\nc\td", Newlines::keep), "a\nb^M\nc\td");
}

TEST(Printable, IsIdempotentAndValidUtf8ForEveryTwoBytes) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string text{static_cast<char>(a), static_cast<char>(b), 'x'}, once = printable(text);
      ASSERT_EQ(printable(once), once) << a << ' ' << b;
      ASSERT_EQ(find_invalid_utf8(once), std::string::npos) << a << ' ' << b;
      for (const char c : once) ASSERT_GE(static_cast<unsigned char>(c), 0x20) << a << ' ' << b;
    }
  }
}

TEST(Printable, AppliesToProblems) {
  const Problem problem{.file = "a\033]0;title\a.yaml", .what = "unknown key", .got = "x\u202ey\nz"};
  EXPECT_EQ(problem.line(), "a^[]0;title^G.yaml: unknown key (got x<U+202E>y z)");
}

}  // namespace printable_test
}  // namespace hawser
