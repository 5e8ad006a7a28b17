#include "common/base/shell_text.h"

namespace sortie {

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return std::string(word);
  std::string out = "'";
  for (const char c : word)
    if (c == '\'')
      out += "'\\''";
    else
      out += c;
  return out + "'";
}

std::string shell_text(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + shell_word(word);
  return out;
}

}  // namespace sortie
