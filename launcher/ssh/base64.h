// Base64 with padding (RFC 4648, section 4).
#pragma once

#include <string>
#include <string_view>

namespace sortie::launcher {

std::string base64_encode(std::string_view bytes);
/// Empty if `text` is not valid base64.
std::string base64_decode(std::string_view text);

}  // namespace sortie::launcher
