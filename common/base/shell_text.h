// Quotes words for a POSIX shell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sortie {

/// The words joined by spaces: "a 'b c' 'it'\''s'". Words that a shell might interpret are quoted.
std::string shell_text(const std::vector<std::string>& words);
std::string shell_word(std::string_view word);

}  // namespace sortie
