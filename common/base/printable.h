// Makes untrusted text safe to print on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace sortie {

/// Whether the character changes how the text around it is shown: direction marks, embeddings,
/// overrides and isolates, line separators, invisible operators, tags. It could make a line look
/// like a different one. False for control characters (C0, C1).
bool is_hidden_control(char32_t point);

/// Returns `bytes` without anything that controls a terminal. Control bytes become visible (^X),
/// invalid UTF-8 and C1 controls become U+FFFD, characters that are invisible or change the
/// direction of text become "<U+202E>" and the like. Tabs and all other valid UTF-8 stay.
std::string printable(std::string_view bytes);
/// Applies printable() to each line; newlines stay.
std::string printable_lines(std::string_view text);

}  // namespace sortie
