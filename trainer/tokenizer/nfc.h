// Unicode normalisation form C, as the `tokenizers` package does it.
#pragma once

#include <string>
#include <string_view>

namespace sortie::trainer {

/// Returns `text` (valid UTF-8) itself if NFC certainly does not change it, otherwise its NFC in
/// `buffer`.
std::string_view normalize_nfc(std::string_view text, std::string& buffer);

}  // namespace sortie::trainer
