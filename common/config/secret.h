// Which environment variables are secrets, and what stands for their values wherever a config is
// written or shown.
#pragma once

#include <string_view>

namespace sortie::config {

/// Shown in place of a secret. As the value of a variable it means "kept elsewhere": sortie takes
/// the value from runner.secrets_file or from its own environment. So a config that was written
/// without its secrets is a config again.
inline constexpr std::string_view kSecretShown = "(secret)";

/// True for names whose last word is TOKEN, KEY, SECRET, PASSWORD, PASSPHRASE or CREDENTIALS, and
/// for those with PASSWORD or SECRET as a word anywhere: their values are secrets without being
/// declared. Case does not matter.
bool looks_secret(std::string_view variable);

}  // namespace sortie::config
