// Patterns of OpenSSH's config and known_hosts files: '*', '?', and lists with '!' negation.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sortie::launcher::ssh {

/// Whole-string match with '*' and '?', ignoring ASCII case.
bool matches_pattern(std::string_view text, std::string_view pattern);

/// True if some pattern matches and no pattern with a leading '!' matches.
bool matches_pattern_list(std::string_view text, std::span<const std::string> patterns);

/// Converts ASCII letters to lower case.
std::string lower(std::string_view text);

}  // namespace sortie::launcher::ssh
