// Unicode normalisation form C, as the `tokenizers` package does it.
#pragma once

#include <string>
#include <string_view>

namespace sortie::trainer {

/// `text` (valid UTF-8) itself when NFC does not change it for sure, else its NFC in `buffer`.
std::string_view normalize_nfc(std::string_view text, std::string& buffer);

}  // namespace sortie::trainer
