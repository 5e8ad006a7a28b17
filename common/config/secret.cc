#include "common/config/secret.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace sortie::config {

bool looks_secret(std::string_view variable) {
  std::string name = "_";
  for (const char c : variable)
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  constexpr std::string_view kLast[] = {"_TOKEN", "_KEY", "_PASSWD", "_PASSPHRASE", "_CREDENTIALS"};
  if (std::ranges::any_of(kLast, [&](std::string_view word) { return name.ends_with(word); }))
    return true;
  name += '_';
  return name.contains("PASSWORD") || name.contains("_SECRET_");
}

}  // namespace sortie::config
