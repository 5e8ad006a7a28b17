// Which environment variables are secrets, and the text that replaces their values wherever a
// config is written or shown.
#pragma once

#include <string_view>

namespace sortie::config {

/// Shown in place of a secret. As the value of a variable it means that the secret is kept
/// elsewhere: sortie takes the value from runner.secrets_file or from its own environment. So a
/// config that was written without its secrets can be loaded again.
inline constexpr std::string_view kSecretShown = "(secret)";

/// True for names whose last word is TOKEN, KEY, PASSWD, PASSPHRASE or CREDENTIALS, that contain
/// PASSWORD, or that have SECRET as a word: their values are secrets without being declared. Words
/// are separated by '_'. Case does not matter.
bool looks_secret(std::string_view variable);

}  // namespace sortie::config
