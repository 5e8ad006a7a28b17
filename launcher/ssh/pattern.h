// The patterns of OpenSSH's config and known_hosts files: '*', '?', and lists with '!' negation.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sortie::launcher::ssh {

/// Whole-string match with '*' and '?', ASCII case ignored.
bool matches_pattern(std::string_view text, std::string_view pattern);

/// True when some pattern matches and no pattern with a leading '!' does.
bool matches_pattern_list(std::string_view text, std::span<const std::string> patterns);

/// ASCII letters in lower case.
std::string lower(std::string_view text);

}  // namespace sortie::launcher::ssh
