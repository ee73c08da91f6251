// Text of foreign origin, made safe to print on a terminal: file contents, file names, a server's answer, model output.
#pragma once

#include <string>
#include <string_view>

namespace hawser {

enum class Newlines {
  to_spaces,  // the result is one line: line feeds, carriage returns and tabs become spaces
  keep        // line feeds and tabs stay
};

// `text` without anything that moves a cursor, changes a terminal's state or reorders what is displayed:
//
//   C0 control characters and DEL    ^[ notation (ESC is ^[, DEL is ^?)
//   C1 control characters            <U+0080> to <U+009F>
//   bidirectional controls           <U+061C>, <U+200E>, <U+200F>, <U+202A> to <U+202E>, <U+2066> to <U+2069>
//   line and paragraph separators    <U+2028>, <U+2029>
//   invalid UTF-8                    U+FFFD, the replacement character
//
// Everything else stays as it is. Applying it twice gives the same text.
std::string printable(std::string_view text, Newlines newlines = Newlines::to_spaces);

}  // namespace hawser
