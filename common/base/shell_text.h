// A command as a shell would read it back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sortie {

/// "a 'b c' 'it'\''s'": words with anything but plain characters in single quotes.
std::string shell_text(const std::vector<std::string>& words);
std::string shell_word(std::string_view word);

}  // namespace sortie
