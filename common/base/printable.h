// Text of others on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace sortie {

/// Text that can not take over a terminal: control bytes become visible (^X), UTF-8 stays, invalid
/// bytes become U+FFFD, characters that turn the direction of text <U+202E>. Tabs stay.
std::string printable(std::string_view bytes);
/// The same of several lines, which stay lines.
std::string printable_lines(std::string_view text);

}  // namespace sortie
